"""While Postgres is away, what this process remembers is all there is to tell a duplicate by."""

from __future__ import annotations

from typing import Any

import pytest

from tarry.core.states import State
from tarry.router import ledger
from tarry.router.ledger import Memory
from tarry.store.rows import Claim, Claimed, Granted, Record

NOW = 1_000_000


BODY = "0123456789abcdef"
SAME, OTHER = BODY + "0" * 15 + "1", BODY + "0" * 15 + "2"
"""Two identities that agree in queue, message id and body."""


def claim(
    *, round_: int = 1, knows_round: bool = False, redelivered: bool = False, identity: str = SAME, **more: Any
) -> Claim:
    return Claim("id", round_, knows_round, redelivered, 0, "orders", "m1", None, identity, matchable=True, **more)


def remembering(round_: int, due_ms: int, **more: Any) -> Memory:
    known = Memory(lambda: NOW)
    known.scheduled(
        [Record("id", round_, State.SCHEDULED, "orders", due_ms=due_ms, retry_count=round_, identity=SAME, **more)]
    )
    return known


def asked(known: Memory, one: Claim) -> Granted | None:
    return known.claim([one]).granted.get("id")


def test_a_retry_never_heard_of_is_taken_on_trust() -> None:
    assert asked(Memory(lambda: NOW), claim()) == Granted("id", 1, 0, None)


@pytest.mark.parametrize(
    ("request_", "granted_round"),
    [
        (claim(), None),
        (claim(redelivered=True), None),
        (claim(round_=2, knows_round=True), None),
        (claim(round_=2, knows_round=True, redelivered=True), None),
        (claim(round_=3, knows_round=True), 3),
    ],
    ids=[
        "the same request was delivered again",
        "its redelivery",
        "the round it is in",
        "that one's redelivery",
        "the next round",
    ],
)
def test_while_round_two_is_waiting(request_: Claim, granted_round: int | None) -> None:
    answer = remembering(2, NOW + 1).claim([request_])
    assert [one.round for one in answer.granted.values()] == ([] if granted_round is None else [granted_round])
    assert answer.duplicate_of == ({"id": "id"} if granted_round is None else {})


def test_a_request_without_headers_after_the_due_time_is_the_next_round() -> None:
    assert asked(remembering(2, NOW), claim()) == Granted("id", 3, 2, None)


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_claim_that_was_never_confirmed_is_granted_to_the_next_request(*, redelivered: bool) -> None:
    """What is being moved is not asked for: the flow sees to that. To drop the request could be to lose it."""
    known = Memory(lambda: NOW)
    known.remember([claim(round_=2, knows_round=True)], Claimed({"id": Granted("id", 2, 0, None)}, {}))
    for one in (claim(round_=2, knows_round=True, redelivered=redelivered), claim(redelivered=redelivered)):
        granted = asked(known, one)
        assert granted is not None
        assert granted.round == 2
    assert asked(known, claim(round_=1, knows_round=True, redelivered=redelivered)) is None


def test_a_message_in_review_stays_and_the_same_again_is_a_new_retry() -> None:
    known = Memory(lambda: NOW)
    known.scheduled([Record("id", 2, State.IN_REVIEW, "orders", identity=SAME)])
    assert asked(known, claim(round_=2, knows_round=True)) is None
    granted = asked(known, claim())
    assert granted is not None
    assert (granted.retry_id != "id", granted.round) == (True, 1)


def test_other_headers_make_another_message_while_the_first_waits() -> None:
    granted = asked(remembering(1, NOW + 1), claim(identity=OTHER))
    assert granted is not None
    assert granted.retry_id != "id"


def test_other_headers_keep_counting_once_the_first_was_due() -> None:
    assert asked(remembering(1, NOW), claim(identity=OTHER)) == Granted("id", 2, 1, None)


def test_another_death_while_the_first_waits_is_another_message() -> None:
    known = remembering(1, NOW + 1, death="orders:1:5")
    again = claim(death="orders:1:6")._replace(retry_id="other")
    assert known.claim([again]).granted["other"] == Granted("other", 1, 0, None)
    assert asked(remembering(1, NOW + 1, death="orders:1:5"), claim(death="orders:1:5")) is None
    by_id = again._replace(by_content=False)
    assert remembering(1, NOW + 1, death="orders:1:5").claim([by_id]).duplicate_of == {"other": "id"}


def test_copied_headers_on_another_message_do_not_make_it_a_duplicate() -> None:
    granted = asked(remembering(2, NOW + 1), claim(round_=2, knows_round=True, identity=OTHER))
    assert granted is not None
    assert (granted.retry_id != "id", granted.round) == (True, 2)


def test_a_round_that_was_guessed_does_not_cost_the_message_it_was_for() -> None:
    known = remembering(1, NOW)
    assert asked(known, claim()) == Granted("id", 2, 1, None)
    known.scheduled([Record("id", 2, State.SCHEDULED, "orders", due_ms=NOW + 1, identity=SAME)])
    granted = asked(known, claim(round_=2, knows_round=True))
    assert granted is not None
    assert granted.retry_id != "id"


def test_a_guess_is_remembered_when_the_round_after_it_has_begun() -> None:
    known = remembering(1, NOW)
    asked(known, claim())
    for round_ in (2, 3):
        known.scheduled([Record("id", round_, State.SCHEDULED, "orders", due_ms=NOW, identity=SAME)])
    assert known.guessed_round("id") == 2
    granted = asked(known, claim(round_=2, knows_round=True))
    assert granted is not None
    assert granted.retry_id != "id"


def test_two_requests_of_one_batch_do_not_get_the_same_round() -> None:
    named = claim(round_=2, knows_round=True, identity="f" * 32)
    bare = claim()._replace(retry_id="bare")
    answer = remembering(1, NOW).claim([named, bare])
    rounds = {(one.retry_id, one.round) for one in answer.granted.values()}
    assert len(rounds) == 2


def test_it_forgets_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "REMEMBERED", 2)
    known = Memory(lambda: NOW)
    for name in ("id", "b", "c"):
        one = claim(round_=5, knows_round=True)._replace(retry_id=name)
        known.remember([one], Claimed({name: Granted(name, 5, 0, None)}, {}))
    granted = asked(known, claim(round_=1, knows_round=True))
    assert granted is not None
    assert granted.round == 1

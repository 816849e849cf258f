"""While Postgres is away, what this process remembers is all there is to tell a duplicate by."""

from __future__ import annotations

import pytest

from tarry.audit.records import Claim, Granted, Record
from tarry.core.states import State
from tarry.router import memory
from tarry.router.memory import Memory

NOW = 1_000_000


def claim(*, round_: int = 1, knows_round: bool = False, redelivered: bool = False) -> Claim:
    return Claim("id", round_, knows_round, redelivered, 0, "orders", "m1", None)


def remembering(round_: int, due_ms: int) -> Memory:
    known = Memory(lambda: NOW)
    known.scheduled([Record("id", round_, State.SCHEDULED, "orders", due_ms=due_ms)])
    return known


def test_a_retry_never_heard_of_is_taken_on_trust() -> None:
    assert Memory(lambda: NOW).claim([claim()]) == {"id": Granted(1, 0, None)}


@pytest.mark.parametrize(
    ("asked", "granted_round"),
    [
        (claim(), None),
        (claim(redelivered=True), None),
        (claim(round_=2, knows_round=True), None),
        (claim(round_=2, knows_round=True, redelivered=True), None),
        (claim(round_=3, knows_round=True), 3),
    ],
    ids=["the same request again", "its redelivery", "the round it is in", "that one's redelivery", "the next round"],
)
def test_while_round_two_is_waiting(asked: Claim, granted_round: int | None) -> None:
    found = remembering(2, NOW + 1).claim([asked])
    assert (found["id"].round if found else None) == granted_round


def test_once_it_was_due_a_request_without_headers_is_a_new_round() -> None:
    assert remembering(2, NOW).claim([claim()])["id"].round == 3


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_claim_that_was_never_confirmed_is_taken_up_by_whoever_asks_for_that_round(*, redelivered: bool) -> None:
    """What is being moved is not asked for: the flow sees to that. To drop the request could be to lose it."""
    known = Memory(lambda: NOW)
    known.remember({"id": Granted(2, 0, None)})
    assert known.claim([claim(round_=2, knows_round=True, redelivered=redelivered)])["id"].round == 2
    assert known.claim([claim(redelivered=redelivered)])["id"].round == 2
    assert known.claim([claim(round_=1, knows_round=True, redelivered=redelivered)]) == {}


def test_what_went_to_review_is_known() -> None:
    known = Memory(lambda: NOW)
    known.scheduled([Record("id", 2, State.IN_REVIEW, "orders")])
    assert known.claim([claim(round_=2, knows_round=True)]) == {}
    assert known.claim([claim()])["id"].round == 3


def test_it_forgets_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "REMEMBERED", 2)
    known = Memory(lambda: NOW)
    known.remember({name: Granted(5, 0, None) for name in ("id", "b", "c")})
    assert known.claim([claim(round_=1, knows_round=True)])["id"].round == 1

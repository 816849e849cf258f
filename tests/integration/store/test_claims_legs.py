"""Legs of a long delay in the store: where the message waits now, and which copies of it may be dropped."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tarry.store.database import query
from tarry.store.rows import Leg, LegKey
from tests.support.audit_store import AuditStore, now_ms, request

WEEK = 7 * 86_400_000
LADDER = 262_143_875
CONTENT = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def retry(store: AuditStore) -> str:
    """A retry that is due in a week."""
    claim = request("m1", retry=str(uuid.uuid4()))
    [retry] = store.claim(claim)
    store.schedule(retry, 1, due_in_ms=WEEK, tier="retry.ladder.6.229376s", body=b"payload", properties=b"some")
    return retry


def due_of(store: AuditStore, retry: str) -> int:
    row = store.sql.execute("select (extract(epoch from due_at) * 1000)::bigint from retry where id = %s", [retry])
    found = row.fetchone()
    assert found is not None
    return int(found[0])


def leg(
    store: AuditStore, retry: str, number: int, *, last: bool = False, tier: str = "t", due: int | None = None
) -> Leg:
    at = now_ms()
    due = due_of(store, retry) if due is None else due
    return Leg(retry, 1, due, CONTENT, number, tier, at, due - at, None if last else LADDER)


def sent_on(store: AuditStore, legs: Sequence[LegKey]) -> set[LegKey]:
    found: set[LegKey] = store.do(store.other.legs_sent_on(legs))
    return found


def row(store: AuditStore, retry: str) -> tuple[object, ...] | None:
    return store.sql.execute(
        "select state, tier, layover_leg, layover_until is null from retry where id = %s", [retry]
    ).fetchone()


def test_legs_sent_on_are_those_with_a_later_one_of_the_same_round_and_due_time(store: AuditStore, retry: str) -> None:
    first, second = leg(store, retry, 1), leg(store, retry, 2)
    store.do(store.one.record_legs([first]))
    assert sent_on(store, [first.key]) == set()
    store.do(store.one.record_legs([second]))
    others = [
        first.key._replace(round=2),
        first.key._replace(due_ms=first.due_ms + 1),
        first.key._replace(content=CONTENT[::-1]),
        first.key._replace(retry_id=str(uuid.uuid4())),
    ]
    assert sent_on(store, [first.key, second.key, second.key.next, *others]) == {first.key}


def test_a_leg_that_cannot_be_rebuilt_is_not_called_a_copy(store: AuditStore, retry: str) -> None:
    """A broker restored from a backup may have only the earlier leg."""
    first = leg(store, retry, 1)
    store.do(store.one.record_legs([first, leg(store, retry, 2)]))
    store.sql.execute("update retry set body = null where id = %s", [retry])
    assert sent_on(store, [first.key]) == set()
    store.sql.execute("update retry set state = 'returned' where id = %s", [retry])
    assert sent_on(store, [first.key]) == {first.key}


def test_counts_have_a_leg_that_was_not_sent_on(store: AuditStore, retry: str) -> None:
    store.do(store.one.record_legs([leg(store, retry, 1)]))

    store.sql.execute("update retry set layover_until = now() - interval '1 minute' where id = %s", [retry])
    [found] = store.sql.execute(query("counts"), {"grace": timedelta(seconds=30)}).fetchall()
    assert found[7] == 1


def test_legs_sent_on_are_known_after_a_retry_now_began_the_next_round(store: AuditStore, retry: str) -> None:
    first = leg(store, retry, 1)
    store.do(store.one.record_legs([first, leg(store, retry, 2)]))
    store.sql.execute("update retry set round = 2, due_at = now() where id = %s", [retry])
    assert sent_on(store, [first.key]) == {first.key}


def test_record_legs_has_the_queue_and_the_end_of_the_latest_leg(store: AuditStore, retry: str) -> None:
    store.do(store.one.record_legs([leg(store, retry, 2, tier="two"), leg(store, retry, 1, tier="one")]))
    assert row(store, retry) == ("scheduled", "two", 2, False)
    store.do(store.one.record_legs([leg(store, retry, 3, tier="three", last=True)]))
    assert row(store, retry) == ("scheduled", "three", 3, True)
    store.do(store.one.record_legs([leg(store, retry, 1, tier="late, from the spool")]))
    assert row(store, retry) == ("scheduled", "three", 3, True)
    assert [state for state, _ in store.history(retry)] == ["claimed", "scheduled", *["layover"] * 4]
    balance = store.balance()
    assert (balance.rounds, balance.waiting, balance.lost) == (1, 1, 0)


@pytest.mark.parametrize("state", ["cancelled", "returned", "in_review"])
def test_record_legs_leaves_a_retry_alone_that_does_not_wait(store: AuditStore, retry: str, state: str) -> None:
    store.sql.execute("update retry set state = %s where id = %s", [state, retry])
    store.do(store.one.record_legs([leg(store, retry, 2)]))
    assert row(store, retry) == (state, "retry.ladder.6.229376s", None, True)


def test_record_legs_leaves_a_redriven_round_alone(store: AuditStore, retry: str) -> None:
    """A redrive keeps the round and has a due time of its own: the leg is of a copy."""
    store.do(store.one.record_legs([leg(store, retry, 2, due=due_of(store, retry) - 1)]))
    assert row(store, retry) == ("scheduled", "retry.ladder.6.229376s", None, True)


def test_record_legs_makes_an_unroutable_message_wait_again(store: AuditStore, retry: str) -> None:
    store.do(store.one.mark_unroutable([(retry, 1)]))
    store.do(store.one.record_legs([leg(store, retry, 2)]))
    assert row(store, retry) == ("scheduled", "t", 2, False)


def _to_end(store: AuditStore) -> list[str]:
    found = store.sql.execute(query("diversions_to_end"), {"linger": timedelta(minutes=2)})
    return [one[1] for one in found.fetchall()]


def test_a_cancel_stays_bound_while_its_message_waits_for_a_router(store: AuditStore, retry: str) -> None:
    """No router ran for days after the due time: the message passes the gate when one does."""
    store.sql.execute(
        "update retry set due_at = date_trunc('second', now()) - interval '2 days' where id = %s", [retry]
    )
    store.do(store.one.record_legs([leg(store, retry, 1)]))
    store.sql.execute(
        "insert into diversion (id, retry_id, round, kind, actor, due_at, on_release, verdict, decided_at)"
        " select gen_random_uuid(), id, round, 'cancel', 'test', due_at, false, 'cancelled', now() - interval '3 days'"
        " from retry where id = %s",
        [retry],
    )
    assert _to_end(store) == []
    store.sql.execute("update diversion set diverted_at = now() - interval '1 hour'")
    assert _to_end(store) == [retry]

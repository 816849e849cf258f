"""What should have left the held queue of a throttled destination becomes overdue if it does not return."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from tarry.store.database import query
from tests.support.audit_store import AuditStore, id_of, request

M = id_of("m")
THROTTLE = """
insert into paused_destination (destination, kind, name, state, bound_at, rate, throttle)
values ('orders', 'queue', 'orders', 'releasing', '2000-01-01', 500, 5)
"""
SEEN_WITHIN = timedelta(seconds=15)


@pytest.fixture(autouse=True)
def _held(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    store.age(M, 60)
    store.sql.execute(THROTTLE)
    assert _look(store) == "held"


def _run(store: AuditStore, name: str, **parameters: Any) -> Any:
    return store.sql.execute(query(name), {"seen_within": SEEN_WITHIN, "actor": "watcher", **parameters})


def _look(store: AuditStore) -> str:
    """The state after a pass of the reconciler."""
    _run(store, "mark_held", margin=timedelta(0))
    return store.state(M)[0]


def _empty(store: AuditStore) -> str:
    """The state after the held queue was seen empty."""
    _run(store, "throttle_caught_up", destination="orders", rate=500)
    return store.state(M)[0]


def test_throttle_holds_what_waits_and_it_is_not_overdue(store: AuditStore) -> None:
    store.age(M, 3600)
    assert (_look(store), store.balance().overdue) == ("held", 0)


def test_throttle_with_an_empty_queue_expects_what_was_held(store: AuditStore) -> None:
    assert _empty(store) == "held"  # the tap may be about to see it
    store.age(M, 60)
    assert _empty(store) == "scheduled"
    assert _look(store) == "scheduled"  # it is not in the held queue any more
    store.age(M, 60)
    assert store.balance().overdue == 1
    store.see(M, 1)
    assert (store.state(M)[0], store.balance().lost) == ("returned", 0)
    assert [state for state, _ in store.history(M)] == ["claimed", "scheduled", "held", "scheduled", "returned"]


def test_throttle_with_a_queue_no_longer_empty_holds_what_arrives_late(store: AuditStore) -> None:
    """After an outage of the broker they come long after their due time, and it takes long until all have returned."""
    store.age(M, 600)
    assert _empty(store) == "scheduled"
    assert _look(store) == "scheduled"
    store.sql.execute("update paused_destination set empty_at = empty_at - interval '2 minutes'")
    store.sql.execute("update retry set expected_at = expected_at - interval '2 minutes'")
    assert store.balance().overdue == 1
    assert (_look(store), store.balance().overdue) == ("held", 0)


@pytest.mark.parametrize(("rate", "unread", "must_be_there"), [(5, 0, 21), (5, 20, 1), (5, 21, 0), (11, 0, 0)])
def test_throttle_holds_all_but_what_can_be_in_flight(
    store: AuditStore, rate: int, unread: int, must_be_there: int
) -> None:
    """Otherwise the loss of what waits would show only once the backlog is gone."""
    store.sql.execute(
        "insert into retry (id, queue, state, round, due_at, expected_at, updated_at)"
        " select gen_random_uuid(), queue, state, round, due_at, expected_at, updated_at"
        " from retry, generate_series(2, 41)"
    )
    store.sql.execute("update paused_destination set throttle = %s", [rate])
    store.age(M, 60)
    store.sql.execute("update retry set updated_at = now() - interval '1 minute'")
    found = _run(store, "in_held_queues", settle=timedelta(seconds=2), unread=unread).fetchall()
    assert found == ([("queue", "orders", must_be_there)] if must_be_there else [])


def test_throttle_that_is_refused_ends_only_what_it_began(store: AuditStore) -> None:
    """A release that is about to end has no binding any more, but it still releases what the held queue has."""
    made = str(uuid.uuid4())
    store.sql.execute("update paused_destination set bound_at = null, throttle = null")
    about = {"rate": None, "canary": False, "observe": None, "lasts": None, "reason": None}
    _run(store, "begin_pause", id=made, scope="throttle", pattern="*", actor="ann", **about)
    for label in ("orders", "mail"):
        row = {"destination": label, "kind": "queue", "name": label, "rate": 500, "throttle": 5}
        store.sql.execute(query("throttle_destination"), row)
        _run(store, "drop_throttled", destination=label, throttle_id=made)
    states = store.sql.execute("select destination, state from paused_destination order by 1")
    assert states.fetchall() == [("mail", "over"), ("orders", "releasing")]


ONLY_ORDERS = """
create or replace function tarry_holds(
    kind text, label text, name text, queue text, exchange text, policy text, properties bytea
) returns boolean language plpgsql as $$
begin
    if queue <> 'orders' then raise exception 'examined one of %', queue; end if;
    return true;
end $$
"""


def test_throttle_examines_only_its_own_held_retries(store: AuditStore) -> None:
    """There can be many throttles, and many held retries: each of one for each of the other would take too long."""
    store.sql.execute("update retry set queue = 'other', id = gen_random_uuid()")
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    store.age(M, 60)
    store.sql.execute("update retry set state = 'held'")
    store.sql.execute(ONLY_ORDERS)
    assert _run(store, "paused_destinations", counted=True).fetchone()[16] == 1
    assert _run(store, "paused").fetchone()[3] == 1
    assert _empty(store) == "scheduled"

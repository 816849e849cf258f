"""A claim that reaches Postgres after its router gave up on it begins no round; what is left over is given back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from typing import Any

import pytest

from tarry.audit.maintenance import STALE_CLAIM
from tarry.errors import AuditUnavailableError
from tarry.store.claims import GIVE_BACK, LEASE, Store
from tarry.store.database import query
from tests.support.audit_store import AuditStore, id_of, request
from tests.support.proxy import Proxy
from tests.support.spaces import Database, with_port
from tests.support.store import in_session
from tests.support.waiting import wait_for

M = id_of("m")
LATE = 7.0
"""Seconds on the wire: longer than a router waits for the answer."""


@pytest.fixture
def wire(database: Database, proxy: Callable[[str], Proxy]) -> Proxy:
    return proxy(database.dsn)


@pytest.fixture
def far(database: Database, wire: Proxy) -> Iterator[AuditStore]:
    """The audit with a router that is reached by a wire that can be slow."""
    with closing(AuditStore(database.dsn)) as store:
        store.do(store.one.close())
        store.one = Store(with_port(database.dsn, wire.port), "one")
        store.do(store.one.open())
        yield store


def test_a_claim_that_arrives_late_grants_nothing(far: AuditStore, wire: Proxy) -> None:
    _returned(far)
    before = _claims_run(far)
    wire.delay(LATE)
    with pytest.raises(AuditUnavailableError):
        far.claim(request("m", round_=1, count=1))
    wait_for(lambda: _claims_run(far) != before, what="Postgres to have run the late statement")
    assert far.state(M) == ("returned", 1, 1), "nobody owns a round that is granted now"


def test_a_claim_whose_answer_was_lost_is_given_back_by_its_router(far: AuditStore, wire: Proxy) -> None:
    _returned(far)
    with far.sql.transaction():
        far.sql.execute("select from retry for update")
        asked = far.submit(far.one.claim([request("m", round_=1, count=1)]))
        wait_for(lambda: _waits_for_a_lock(far), what="the claim at Postgres")
        wire.blackhole()
    wait_for(lambda: far.state(M) == ("claimed", 2, 1), what="Postgres to grant it")
    with pytest.raises(AuditUnavailableError):
        asked.result(30)
    assert far.one.has_unconfirmed
    wire.heal()

    def given_back() -> bool:
        with suppress(AuditUnavailableError):
            far.do(far.one.release_unconfirmed())
        return not far.one.has_unconfirmed

    wait_for(given_back, deadline=60, what="it to be given back")
    assert far.state(M) == ("returned", 1, 1)
    assert far.balance().claimed == 0


def test_a_claim_of_a_killed_router_is_given_back_by_the_next_pass(store: AuditStore) -> None:
    _returned(store)
    assert store.claim(request("m", round_=1, count=1))[M].round == 2
    assert _given_back(store) == 0, "its router may be at work"
    store.age(M, 31)
    assert _given_back(store) == 1
    assert store.state(M) == ("returned", 1, 1)
    assert store.claim(request("m", round_=1, count=1), by=store.other)[M].round == 2, "a true failure goes on"


def test_a_claim_given_back_knows_of_a_return_recorded_before_it(store: AuditStore) -> None:
    """The record of the round before came late, through the spool: the history has it behind the return."""
    store.see(M, 1)
    store.schedule(M, 1, due_in_ms=-120_000)
    assert store.state(M)[0] == "returned"
    store.claim(request("m", round_=1, count=1))
    store.age(M, 31)
    assert _given_back(store) == 1
    assert store.state(M)[:2] == ("returned", 1)
    assert (store.balance().overdue, store.balance().returned) == (0, 1)


def test_a_claim_that_was_given_back_too_early_is_made_again_by_its_record(store: AuditStore) -> None:
    _returned(store)
    store.claim(request("m", round_=1, count=1))
    store.age(M, 31)
    _given_back(store)
    store.schedule(M, 2, count=2)
    assert store.state(M) == ("scheduled", 2, 2)
    balance = store.balance()
    assert balance.requests == balance.accounted


def test_a_first_claim_whose_answer_was_lost_is_forgotten(store: AuditStore) -> None:
    store.claim(request("m"))
    store.one._unconfirmed[store.one._token] = 0
    store.do(store.one.release_unconfirmed())
    assert store.sql.execute("select count(*) from retry").fetchone() == (0,)
    store.schedule(M, 1)
    assert store.state(M) == ("scheduled", 1, 1), "its record makes the row again"


@pytest.mark.parametrize(("other", "closed"), [({"identity": None}, 1), ({"body": "other"}, 0)], ids=["same", "other"])
def test_a_first_claim_that_was_handled_as_another_retry_is_closed(
    store: AuditStore, other: dict[str, Any], closed: int
) -> None:
    """A router was killed, and the policy or the version changed: its request came again under another id."""
    store.claim(request("m"))
    again = request("m", body=other.get("body", ""))._replace(retry_id=str(uuid.uuid4()), matchable=False)
    store.claim(again._replace(identity=other.get("identity", again.identity)), by=store.other)
    store.schedule(again.retry_id, 1)
    store.age(M, 61)
    upkeep = in_session(store.dsn, lambda audit: audit.change("close_superseded", older_than=LEASE, actor="upkeep"))
    assert upkeep == closed


_STALE = GIVE_BACK | {"older_than": STALE_CLAIM, "actor": "upkeep"}


def _given_back(store: AuditStore) -> int:
    return in_session(store.dsn, lambda audit: audit.change("give_back", **_STALE))


def _returned(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=0)
    store.see(M, 1)


def _claims_run(store: AuditStore) -> set[tuple[int, datetime]]:
    """The latest claim of each connection of the router, once it has ended."""
    store.do(asyncio.sleep(0.05))  # the pool works in its loop
    begins = query("claim").decode().splitlines()[0]  # Postgres shows the first kilobyte
    asked = (
        "select pid, query_start from pg_stat_activity"
        " where application_name = 'tarry one' and state = 'idle' and position(%s in query) > 0"
    )
    return set(store.sql.execute(asked, [begins]).fetchall())


def _waits_for_a_lock(store: AuditStore) -> bool:
    asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    row = store.sql.execute(asked).fetchone()
    return row is not None and row[0] > 0

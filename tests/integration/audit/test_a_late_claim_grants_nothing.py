"""A claim that reaches Postgres after its router gave up on it begins no round; what is left over is given back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from typing import Any

import pytest

from tarry.audit.report import report
from tarry.audit.store import GIVE_BACK, LEASE, Store
from tarry.audit.upkeep import STALE_CLAIM
from tarry.errors import AuditUnavailableError
from tests.harness.proxy import Proxy
from tests.harness.spaces import Database, with_port
from tests.harness.waiting import wait_for
from tests.integration.audit.books import Books, id_of, request

M = id_of("m")
LATE = 7.0
"""Seconds on the wire: longer than a router waits for the answer."""


@pytest.fixture
def wire(database: Database, proxy: Callable[[str], Proxy]) -> Proxy:
    return proxy(database.dsn)


@pytest.fixture
def far(database: Database, wire: Proxy) -> Iterator[Books]:
    """The audit with a router that is reached by a wire that can be slow."""
    with closing(Books(database.dsn)) as books:
        books.do(books.one.close())
        books.one = Store(with_port(database.dsn, wire.port), "one")
        books.do(books.one.open())
        yield books


def test_a_claim_that_arrives_late_grants_nothing(far: Books, wire: Proxy) -> None:
    _returned(far)
    before = _claims_run(far)
    wire.delay(LATE)
    with pytest.raises(AuditUnavailableError):
        far.claim(request("m", round_=1, count=1))
    wait_for(lambda: _claims_run(far) != before, what="Postgres to have run the late statement")
    assert far.state(M) == ("returned", 1, 1), "nobody owns a round that is granted now"


def test_a_claim_whose_answer_was_lost_is_given_back_by_its_router(far: Books, wire: Proxy) -> None:
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


def test_a_claim_of_a_killed_router_is_given_back_by_the_next_pass(books: Books) -> None:
    _returned(books)
    assert books.claim(request("m", round_=1, count=1))[M].round == 2
    with report(books.dsn) as audit:
        assert audit.change("give_back", **_STALE) == 0, "its router may be at work"
        books.age(M, 31)
        assert audit.change("give_back", **_STALE) == 1
    assert books.state(M) == ("returned", 1, 1)
    assert books.claim(request("m", round_=1, count=1), by=books.other)[M].round == 2, "a true failure goes on"


def test_a_claim_that_is_given_back_knows_of_a_return_that_was_recorded_first(books: Books) -> None:
    """The record of the round before came late, through the spool: the history has it behind the return."""
    books.see(M, 1)
    books.schedule(M, 1, due_in_ms=-120_000)
    assert books.state(M)[0] == "returned"
    books.claim(request("m", round_=1, count=1))
    books.age(M, 31)
    with report(books.dsn) as audit:
        assert audit.change("give_back", **_STALE) == 1
    assert books.state(M)[:2] == ("returned", 1)
    assert (books.balance().overdue, books.balance().returned) == (0, 1)


def test_a_claim_that_was_given_back_too_early_is_made_again_by_its_record(books: Books) -> None:
    _returned(books)
    books.claim(request("m", round_=1, count=1))
    books.age(M, 31)
    with report(books.dsn) as audit:
        audit.change("give_back", **_STALE)
    books.schedule(M, 2, count=2)
    assert books.state(M) == ("scheduled", 2, 2)
    balance = books.balance()
    assert balance.requests == balance.accounted


def test_a_first_claim_whose_answer_was_lost_is_forgotten(books: Books) -> None:
    books.claim(request("m"))
    books.one._unconfirmed[books.one._token] = 0
    books.do(books.one.release_unconfirmed())
    assert books.sql.execute("select count(*) from retry").fetchone() == (0,)
    books.schedule(M, 1)
    assert books.state(M) == ("scheduled", 1, 1), "its record makes the row again"


@pytest.mark.parametrize(("other", "closed"), [({"identity": None}, 1), ({"body": "other"}, 0)], ids=["same", "other"])
def test_a_first_claim_that_was_handled_as_another_retry_is_closed(
    books: Books, other: dict[str, Any], closed: int
) -> None:
    """A router was killed, and the policy or the version changed: its request came again under another id."""
    books.claim(request("m"))
    again = request("m", body=other.get("body", ""))._replace(retry_id=str(uuid.uuid4()), matchable=False)
    books.claim(again._replace(identity=other.get("identity", again.identity)), by=books.other)
    books.schedule(again.retry_id, 1)
    books.age(M, 61)
    with report(books.dsn) as audit:
        assert audit.change("close_superseded", older_than=LEASE, actor="upkeep") == closed


_STALE = GIVE_BACK | {"older_than": STALE_CLAIM, "actor": "upkeep"}


def _returned(books: Books) -> None:
    books.claim(request("m"))
    books.schedule(M, 1, due_in_ms=0)
    books.see(M, 1)


def _claims_run(books: Books) -> set[tuple[int, datetime]]:
    """The latest claim of each connection of the router, once it has ended."""
    books.do(asyncio.sleep(0.05))  # the pool works in its loop
    asked = (
        "select pid, query_start from pg_stat_activity"
        " where application_name = 'tarry one' and state = 'idle' and query like '%Takes requests for this router%'"
    )
    return set(books.sql.execute(asked).fetchall())


def _waits_for_a_lock(books: Books) -> bool:
    asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    row = books.sql.execute(asked).fetchone()
    return row is not None and row[0] > 0

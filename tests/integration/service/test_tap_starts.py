"""What consumers report as started is never presumed to have succeeded, and ends with its outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tarry.service.tap import Tap
from tarry.store.database import PostgresSession
from tarry.store.retention import in_slices
from tarry.store.rows import StuckLimits
from tests.integration.service.test_tap_outcome_reports import NAMES, M, N, outcome, report, tap, told
from tests.support.audit_store import AuditStore, now_ms, request
from tests.support.spaces import Database
from tests.support.store import in_session

pytestmark = pytest.mark.one_series

NO_TIME = timedelta(0)


@pytest.fixture
def store(database: Database) -> Iterator[AuditStore]:
    """One retry, returned an hour ago."""
    made = AuditStore(database.dsn)
    made.claim(request("m"))
    made.schedule(M, 1, due_in_ms=-10, policy="slow")
    made.see(M, 1)
    made.age(M, 3_600)
    yield made
    made.close()


def started(retry: str = M, round_: int = 1, at_ms: int = 1_700_000_000_000, consumer: object = "host:7") -> bytes:
    row = {"id": retry, "round": round_, "outcome": "started", "at_ms": at_ms, "consumer": consumer}
    return json.dumps({"outcomes": [row]}).encode()


def starts(store: AuditStore) -> list[tuple[object, ...]]:
    found = store.sql.execute("select retry_id::text, round, consumer from attempt_start order by round")
    return found.fetchall()


def presume(store: AuditStore) -> int:
    async def ask(session: PostgresSession) -> int:
        return await in_slices(session, "presume_success", quiet=timedelta(minutes=15))

    return in_session(store.dsn, ask)


def stuck(store: AuditStore, limits: StuckLimits) -> int:
    async def ask(session: PostgresSession) -> int:
        row = await session.one("count_stuck", **limits.parameters())
        return int(row[0]) if row else -1

    return in_session(store.dsn, ask)


def test_a_started_attempt_is_not_presumed_to_have_succeeded(store: AuditStore) -> None:
    tap(store, told(started()))
    assert starts(store) == [(M, 1, "host:7")]
    assert presume(store) == 0
    assert store.state(M)[0] == "returned"
    tap(store, report(outcome()))
    assert store.state(M)[0] == "succeeded"
    assert starts(store) == []


def test_a_start_takes_back_a_success_that_was_only_presumed(store: AuditStore) -> None:
    """The message waited in its queue for longer than the quiet time."""
    assert presume(store) == 1
    assert store.state(M)[0] == "succeeded"
    tap(store, told(started()))
    assert store.state(M)[0] == "returned"
    assert [state for state, _ in store.history(M)][-2:] == ["succeeded", "started"]
    assert store.balance().lost == 0


def test_a_start_that_comes_after_its_success_changes_nothing(store: AuditStore) -> None:
    tap(store, report(outcome()))
    tap(store, told(started()))
    assert (store.state(M)[0], starts(store)) == ("succeeded", [])


def test_a_start_of_a_round_that_is_over_changes_nothing(store: AuditStore) -> None:
    store.claim(request("m", round_=1, count=1))
    tap(store, told(started()), told(started(retry=N)))
    assert (store.state(M)[:2], starts(store)) == (("claimed", 2), [])


def test_an_attempt_is_stuck_from_the_time_it_was_reported(store: AuditStore) -> None:
    """Its own clock may be wrong by hours. A policy may have a limit of its own."""
    tap(store, told(started()))
    assert stuck(store, StuckLimits(timedelta(minutes=30))) == 0
    assert stuck(store, StuckLimits(NO_TIME)) == 1
    assert stuck(store, StuckLimits(timedelta(minutes=30), {"slow": NO_TIME})) == 1
    assert stuck(store, StuckLimits(NO_TIME, {"slow": timedelta(minutes=30)})) == 0
    assert stuck(store, StuckLimits(None)) == 0


def test_a_redelivery_starts_anew_and_a_repeated_report_does_not(store: AuditStore) -> None:
    tap(store, told(started()))
    store.sql.execute("update attempt_start set seen_at = seen_at - interval '1 hour'")
    tap(store, told(started()))
    assert stuck(store, StuckLimits(timedelta(minutes=30))) == 1
    tap(store, told(started(at_ms=now_ms(), consumer="other:8")))
    assert stuck(store, StuckLimits(timedelta(minutes=30))) == 0
    assert starts(store) == [(M, 1, "other:8")]


def test_a_failure_ends_the_attempt_and_its_start_is_forgotten(store: AuditStore) -> None:
    tap(store, told(started()))
    store.claim(request("m", round_=1, count=1))
    store.schedule(M, 2)
    assert stuck(store, StuckLimits(NO_TIME)) == 0

    async def forget(session: PostgresSession) -> int:
        return await in_slices(session, "forget_starts")

    assert in_session(store.dsn, forget) == 1
    assert starts(store) == []


@pytest.mark.parametrize("consumer", [None, "", "a\x00b", "\ud800", "x" * 5_000])
def test_any_name_of_a_consumer_can_be_stored(store: AuditStore, consumer: object) -> None:
    tap(store, told(started(consumer=consumer)))
    ((_, _, name),) = starts(store)
    assert name is None or 1 <= len(str(name)) <= 210


@pytest.mark.parametrize("broken", [started(consumer=7), started(at_ms=-1), started(retry="x")])
def test_a_broken_start_is_passed_over(store: AuditStore, broken: bytes) -> None:
    assert store.do(Tap(store.one, NAMES).handle([told(broken)], lambda _: now_ms())) == []
    assert starts(store) == []

"""What consumers report is written once, whenever it comes, and never over something that is known better."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.outcome import ReportedOutcome
from tarry.core.names import Names
from tarry.service.tap import Tap
from tests.support.audit_store import AuditStore, id_of, now_ms, request

NAMES = Names()
M, N = id_of("m"), id_of("n")


@pytest.fixture
def store(store: AuditStore) -> AuditStore:
    """With one retry that is due."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    return store


def report(*outcomes: ReportedOutcome) -> Delivery:
    rows = [asdict(one) for one in outcomes]
    return told(json.dumps({"outcomes": [{"id": row.pop("retry_id"), **row} for row in rows]}).encode())


def told(body: bytes) -> Delivery:
    return Delivery(body, Properties(), NAMES.reports, "", redelivered=False, tag=1)


def outcome(round_: int = 1, retry: str = M, duration_ms: int = 12) -> ReportedOutcome:
    return ReportedOutcome(retry, round_, round_, now_ms(), duration_ms)


def tap(store: AuditStore, *deliveries: Delivery) -> None:
    assert store.do(Tap(store.one, NAMES).handle(deliveries, lambda _: now_ms())) == []


def test_a_success_is_written_once_with_its_attempt_and_duration(store: AuditStore) -> None:
    store.see(M, 1)
    tap(store, report(outcome(), outcome()), report(outcome()))
    tap(store, report(outcome(duration_ms=99)))
    assert store.state(M)[:2] == ("succeeded", 1)
    assert [state for state, _ in store.history(M)] == ["claimed", "scheduled", "returned", "succeeded"]
    row = store.sql.execute("select actor, detail - 'at_ms' from transition where state = 'succeeded'").fetchone()
    assert row == ("reported", {"attempt": 1, "duration_ms": 12})
    assert store.balance().lost == 0


def test_it_may_come_before_the_return_was_seen(store: AuditStore) -> None:
    tap(store, report(outcome()))
    assert store.state(M)[0] == "succeeded"
    store.see(M, 1)
    assert store.state(M)[0] == "succeeded"
    assert (store.balance().returned, store.balance().lost) == (1, 0)


def test_a_report_before_the_routers_record_changes_nothing(store: AuditStore) -> None:
    """A success that nothing led up to could hide a loss. It is presumed in time, as if nobody had reported it."""
    store.claim(request("n"))
    tap(store, report(outcome(retry=N)))
    assert store.state(N)[0] == "claimed"
    store.schedule(N, 1, due_in_ms=-10)
    store.see(N, 1)
    assert store.state(N)[0] == "returned"


def test_a_later_round_stands_above_it(store: AuditStore) -> None:
    """It succeeded, its acknowledgement was lost, and the second time it failed."""
    store.see(M, 1)
    store.claim(request("m", round_=1, count=1))
    tap(store, report(outcome(1)))
    assert store.state(M)[:2] == ("claimed", 2)
    assert ("succeeded", 1) in store.history(M)
    store.schedule(M, 2)
    tap(store, report(outcome(2), outcome(1)))
    assert store.state(M)[:2] == ("succeeded", 2)
    assert [state for state, _ in store.history(M)].count("succeeded") == 2


def test_what_is_over_by_another_way_stays_as_it_is(store: AuditStore) -> None:
    store.review(M, 1)
    tap(store, report(outcome()))
    assert store.state(M)[0] == "in_review"
    assert ("succeeded", 1) not in store.history(M)


def test_what_was_presumed_is_proven(store: AuditStore) -> None:
    store.see(M, 1)
    store.sql.execute("update retry set state = 'succeeded'")
    store.sql.execute(
        "insert into transition (retry_id, round, state, actor) values (%s, 1, 'succeeded', 'presumed')", [M]
    )
    for _ in range(2):
        tap(store, report(outcome()))
    found = store.sql.execute("select actor from transition where state = 'succeeded' order by id").fetchall()
    assert found == [("presumed",), ("reported",)]


def test_strangers_and_nonsense_are_passed_over(store: AuditStore) -> None:
    nonsense = [b"", b"[]", b'{"outcomes": 7}', b'{"outcomes": [{"id": "x"}]}', b'{"outcomes": [3]}']
    future = b'{"outcomes": [{"outcome": "postponed", "id": "later"}]}'
    store.see(M, 1)
    tap(store, report(outcome(retry=N)), told(future), *map(told, nonsense), report(outcome()))
    assert store.state(M)[0] == "succeeded"
    assert store.sql.execute("select count(*) from retry").fetchone() == (1,)

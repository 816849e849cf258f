"""Skips of messages that were due: each ends its round once, and hides neither a message nor a later round."""

from __future__ import annotations

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.outcome import ReportedSkip, report_of_skips
from tarry.core.names import Names
from tarry.service.tap import Tap
from tarry.store.rows import SkippedWhenDue
from tests.support.audit_store import QUEUE, AuditStore, id_of, now_ms, request

NAMES = Names()
M, N = id_of("m"), id_of("n")


@pytest.fixture
def store(store: AuditStore) -> AuditStore:
    """With one retry that is due."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    return store


def skip(store: AuditStore, round_: int = 1, retry: str = M, reason: str = "inactive") -> list[SkippedWhenDue]:
    """Reports a skip; what the tap recorded for the first time."""
    found: list[SkippedWhenDue] = []
    body = report_of_skips([ReportedSkip(retry, round_, now_ms(), reason)])
    tap = Tap(store.one, NAMES, on_skips=found.extend)
    delivery = Delivery(body, Properties(), NAMES.reports, "", redelivered=False, tag=1)
    assert store.do(tap.handle([delivery], lambda _: now_ms())) == []
    return found


def test_a_skip_ends_its_round_once_with_its_reason(store: AuditStore) -> None:
    assert skip(store) == [SkippedWhenDue(M, 1, QUEUE, "m", None, None, "inactive", comes_due=True)]
    assert skip(store, reason="again") == []
    assert (store.state(M)[:2], store.history(M)[-1]) == (("skipped", 1), ("skipped", 1))
    row = store.sql.execute("select actor, reason from transition where state = 'skipped'").fetchall()
    assert row == [("reported", "inactive")]
    balance = store.balance()
    assert (balance.skipped, balance.waiting, balance.overdue, balance.lost) == (1, 0, 0, 0)
    assert balance.accounted == balance.requests


def test_a_skip_of_a_held_retry_does_not_come_due_again(store: AuditStore) -> None:
    store.sql.execute("update retry set state = 'held'")
    assert [one.comes_due for one in skip(store)] == [False]


def test_a_record_that_arrives_after_the_skip_does_not_open_the_round(store: AuditStore) -> None:
    """The record waited in the spool. It brings the message, and changes the state of no round that is over."""
    store.claim(request("n"))
    assert len(skip(store, retry=N)) == 1
    store.schedule(N, 1, due_in_ms=-3_600_000, body=b"n")
    assert store.state(N)[:2] == ("skipped", 1)
    assert store.balance().overdue == 0
    store.review(N, 1)
    assert store.state(N)[0] == "in_review", "there is a message after all"


def test_a_return_is_a_fact_whatever_was_reported(store: AuditStore) -> None:
    skip(store)
    store.see(M, 1)
    assert store.state(M)[0] == "returned"
    assert skip(store) == []
    assert store.state(M)[0] == "returned"
    assert (store.balance().returned, store.balance().skipped) == (1, 0)


@pytest.mark.parametrize("round_", [1, 3])
def test_a_skip_of_another_round_or_of_an_unknown_retry_changes_nothing(store: AuditStore, round_: int) -> None:
    store.see(M, 1)
    store.claim(request("m", round_=1, count=1, retry=M))
    assert skip(store, round_) == []
    assert skip(store, retry=id_of("unknown")) == []
    assert store.state(M)[:2] == ("claimed", 2)
    assert store.sql.execute("select count(*) from retry").fetchone() == (1,)


def test_a_skipped_request_that_is_delivered_again_is_a_duplicate(store: AuditStore) -> None:
    skip(store)
    assert store.claim(request("m", round_=0, count=0, retry=M, redelivered=True)) == {}
    assert store.state(M)[:2] == ("skipped", 1)

"""A skipped round in the audit: an end of its own, which a message that turns up after all takes precedence over."""

from __future__ import annotations

from tarry.audit.status import read_counts
from tarry.core.states import State
from tarry.store.rows import Granted, Record
from tests.support.audit_store import QUEUE, AuditStore, id_of, request
from tests.support.store import in_session

M = id_of("m")


def skip(store: AuditStore, round_: int = 1, count: int = 0, retry: str = M) -> None:
    store.record(Record(retry, round_, State.SKIPPED, QUEUE, reason="inactive", retry_count=count, body=b"b"))


def test_a_skipped_round_is_in_the_balance_and_in_the_counts(store: AuditStore) -> None:
    store.claim(request("m"))
    skip(store)
    skip(store, retry=id_of("unclaimed"))
    balance = store.balance()
    assert (balance.skipped, balance.rounds, balance.in_review, balance.claimed) == (2, 2, 0, 0)
    assert balance.accounted == balance.requests
    assert balance.lost == 0
    assert in_session(store.dsn, read_counts).skipped_in_a_day == 2
    assert store.history(M) == [("claimed", 1), ("skipped", 1)]
    reason = store.sql.execute("select reason from transition where state = 'skipped' and retry_id = %s", [M])
    assert reason.fetchone() == ("inactive",)


def test_a_skipped_request_delivered_again_is_no_second_round(store: AuditStore) -> None:
    """It crashed before the acknowledgement. With headers it is a duplicate; without, a new retry with its count."""
    store.claim(request("m", round_=2, count=2, retry=M))
    skip(store, round_=3, count=2)
    assert store.claim(request("m", round_=2, count=2, retry=M, redelivered=True)) == {}
    (granted,) = store.claim(request("m", redelivered=True)).values()
    assert granted.retry_id != M
    assert granted.retry_count == 2
    assert store.state(M) == ("skipped", 3, 2)


def test_a_later_round_of_a_skipped_retry_is_granted(store: AuditStore) -> None:
    store.claim(request("m"))
    skip(store)
    granted = store.claim(request("m", round_=1, count=1, retry=M))
    assert granted[M][:3] == Granted(M, 2, 1, None)[:3]
    store.schedule(M, 2, due_in_ms=-10)
    store.see(M, 2)
    balance = store.balance()
    assert (balance.skipped, balance.returned, balance.lost) == (1, 1, 0)
    assert balance.accounted == balance.requests


def test_a_skipped_claim_given_back_is_skipped_again(store: AuditStore) -> None:
    store.claim(request("m"))
    skip(store)
    store.claim(request("m", round_=1, count=1, retry=M))
    store.do(store.one.release([(M, 2)]))
    assert store.state(M)[:2] == ("skipped", 1)
    assert store.balance().skipped == 1


def test_a_skip_does_not_hide_a_message_of_the_same_round(store: AuditStore) -> None:
    """Two routers without Postgres may differ. The row keeps its due time, or a loss of the message would go unseen."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-3_600_000, count=1)
    skip(store)
    assert store.state(M) == ("scheduled", 1, 1)
    assert (store.balance().overdue, store.balance().skipped) == (1, 0)
    store.see(M, 1)
    skip(store)
    assert store.state(M)[0] == "returned"
    assert (store.balance().returned, store.balance().skipped) == (1, 0)


def test_a_message_of_a_skipped_round_is_accounted_for(store: AuditStore) -> None:
    store.claim(request("m"))
    skip(store)
    store.schedule(M, 1, due_in_ms=-3_600_000)
    assert store.balance().overdue == 1
    store.see(M, 1)
    assert store.state(M)[0] == "returned"
    other = id_of("other")
    skip(store, retry=other)
    store.see(other, 1)
    assert store.state(other)[0] == "returned"
    assert (store.balance().returned, store.balance().skipped) == (2, 0)

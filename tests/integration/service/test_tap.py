from __future__ import annotations

import json
from datetime import timedelta

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.core.names import Names
from tarry.core.states import State
from tarry.router.ledger import spool_message
from tarry.service.tap import CancelledTap, RequeueCheck, Tap
from tarry.store.rows import Record, RecordedCancel, RecordedReturn, Return
from tests.support.audit_store import QUEUE, AuditStore, id_of, now_ms, request

NAMES = Names()
M = id_of("m")


def copy(
    round_: int = 1, *, late_ms: int = 5, redelivered: bool = False, changes: dict[str, str] | None = None
) -> Delivery:
    headers = {
        "tarry-id": M,
        "tarry-round": round_,
        "tarry-count": round_,
        "tarry-due-ms": now_ms() - late_ms,
        "tarry-queue": QUEUE,
        **(changes or {}),
    }
    return Delivery(b"body", Properties(headers=table(headers)), NAMES.arrive, "key", redelivered, 1)


def spooled(round_: int, state: State = State.SCHEDULED) -> Delivery:
    due = now_ms() - 10
    record = Record(
        M, round_, state, QUEUE, message_id="m", retry_count=round_, due_ms=due, delay_ms=500, body=b"\x00b"
    )
    message = spool_message(record, NAMES)
    return Delivery(message.body, message.properties, NAMES.spool, "", redelivered=False, tag=1)


def tap(store: AuditStore, *deliveries: Delivery) -> list[str]:
    """What could not be written, and why."""
    left = store.do(Tap(store.one, NAMES).handle(deliveries, lambda _: now_ms()))
    return [reason for _, reason in left]


def test_a_return_is_written_once_however_often_it_is_delivered(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1)
    assert tap(store, copy()) == []
    assert tap(store, copy(redelivered=True)) == []
    assert store.history(M) == [("claimed", 1), ("scheduled", 1), ("returned", 1)]
    assert store.state(M)[0] == "returned"


def test_a_message_that_passes_twice_is_written_down_as_a_duplicate(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1)
    tap(store, copy(), copy())
    tap(store, copy())
    assert [state for state, _ in store.history(M)] == ["claimed", "scheduled", "returned", "duplicate", "duplicate"]
    assert (store.balance().returned, store.balance().twice, store.balance().duplicates) == (1, 2, 0)


def test_an_older_round_that_is_seen_later_is_no_duplicate(store: AuditStore) -> None:
    """Two taps read side by side: what they hold comes out of order."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    store.claim(request("m", round_=1, count=1))
    store.schedule(M, 2, due_in_ms=-10)
    tap(store, copy(2))
    tap(store, copy(1))
    tap(store, copy(1))
    assert [state for state, _ in store.history(M)][4:] == ["returned", "returned", "duplicate"]
    assert store.state(M)[:2] == ("returned", 2)


def test_what_was_spooled_is_written_in_order_and_whole(store: AuditStore) -> None:
    assert tap(store, spooled(1), copy(1), spooled(2), copy(2)) == []
    assert store.state(M) == ("returned", 2, 2)
    row = store.sql.execute("select body, message_id, fingerprint, returned_round from retry").fetchone()
    assert row == (b"\x00b", "m", None, 2)
    balance = store.balance()
    assert (balance.rounds, balance.returned, balance.lost) == (2, 2, 0)


def test_a_doubled_record_and_a_return_before_its_record_do_no_harm(store: AuditStore) -> None:
    assert tap(store, copy(1)) == []
    assert tap(store, spooled(1), spooled(1), spooled(1)) == []
    assert store.state(M)[:2] == ("returned", 1)
    assert store.balance().lost == 0


def test_an_unreadable_record_comes_back_with_a_reason_others_are_written(store: AuditStore) -> None:
    bad = Delivery(b"{}", Properties(), NAMES.spool, "", redelivered=False, tag=2)
    poison = spooled(1)
    fields = json.loads(poison.body) | {"retry_id": "nobody"}
    worse = Delivery(json.dumps(fields).encode(), Properties(), NAMES.spool, "", redelivered=False, tag=3)
    reasons = tap(store, bad, worse, spooled(1))
    assert len(reasons) == 2
    assert reasons[0].startswith("not a spooled record")
    assert reasons[1].startswith("Postgres refused")
    assert store.state(M)[0] == "scheduled"


def test_strangers_are_passed_over(store: AuditStore) -> None:
    foreign = Delivery(b"", Properties(headers=table({"a": 1})), NAMES.arrive, "", redelivered=False, tag=1)
    assert tap(store, foreign, copy(changes={"tarry-id": "no uuid"}), copy(changes={"tarry-due-ms": "soon"})) == []
    assert store.balance().rounds == 0


def test_a_drift_past_any_number_is_only_a_large_one(store: AuditStore) -> None:
    assert tap(store, copy(1, late_ms=now_ms() - 5)) == []
    assert store.sql.execute("select drift_ms from retry").fetchone() == (2_147_483_647,)


def test_a_diverted_message_is_cancelled_once(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1)
    recorded: list[RecordedCancel] = []
    gate = CancelledTap(store.one, NAMES, recorded.extend)
    for again in (copy(), copy(redelivered=True), copy()):
        assert store.do(gate.handle([again, again], lambda _: now_ms())) == []
    assert store.state(M)[0] == "cancelled"
    assert store.history(M) == [("claimed", 1), ("scheduled", 1), ("cancelled", 1)]
    assert store.balance().cancelled == 1
    assert [(one.seen.round, one.comes_due) for one in recorded] == [(1, True)]


def test_a_copy_diverted_after_its_return_is_reported_and_changes_nothing(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1)
    tap(store, copy())
    store.do(CancelledTap(store.one, NAMES).handle([copy()], lambda _: now_ms()))
    assert store.state(M)[0] == "returned"
    assert store.history(M)[-1] == ("duplicate", 1)


def test_tap_reports_a_return_once_and_says_whether_it_comes_due(store: AuditStore) -> None:
    recorded: list[RecordedReturn] = []
    watched = Tap(store.one, NAMES, recorded.extend)

    def see(*copies: Delivery) -> list[tuple[int, bool, bool]]:
        recorded.clear()
        assert store.do(watched.handle(copies, lambda _: now_ms())) == []
        return [(one.seen.round, one.comes_due, one.by_person) for one in recorded]

    store.claim(request("m"))
    store.schedule(M, 1)
    assert see(copy(), copy()) == [(1, True, False)]
    assert see(copy(redelivered=True), copy()) == []
    store.do(store.one.mark_unroutable([(M, 1)]))
    assert store.do(store.one.not_requeued(timedelta(hours=1))) == {(M, 1)}
    assert see(copy()) == [(1, False, False)], "it was due before"
    assert store.do(store.one.not_requeued(timedelta(hours=1))) == set()
    store.claim(request("m", round_=1, count=1))
    store.schedule(M, 2)
    store.sql.execute("update retry set state = 'held', manual_round = 2")
    assert see(copy(2)) == [(2, False, True)]
    assert see(copy(2, redelivered=True)) == []


def test_tap_reports_a_return_that_is_noted_as_unroutable_first(store: AuditStore) -> None:
    recorded: list[RecordedReturn] = []
    store.claim(request("m"))
    store.schedule(M, 1)
    store.do(store.one.mark_unroutable([(M, 1)]))
    assert store.do(Tap(store.one, NAMES, recorded.extend).handle([copy()], lambda _: now_ms())) == []
    assert [one.comes_due for one in recorded] == [True]
    assert store.do(store.one.not_requeued(timedelta(hours=1))) == {(M, 1)}


def test_requeue_check_counts_a_return_once_and_only_if_it_reached_its_queue(store: AuditStore) -> None:
    requeued: list[int] = []
    check = RequeueCheck(store.one, lambda found: requeued.extend(one.round for one in found), after=0)

    async def run() -> None:
        for _ in range(2):
            check.add([RecordedReturn(Return(M, 1, QUEUE, 1, 0, 0, redelivered=False), True, False)])
            check.add([RecordedReturn(Return(M, 2, QUEUE, 2, 0, 0, redelivered=False), True, False)])
        await check.look()
        await check.look()

    store.claim(request("m"))
    store.schedule(M, 1)
    tap(store, copy())
    store.do(store.one.mark_unroutable([(M, 1)]))
    store.do(run())
    assert requeued == [2]

"""Reports of operations are plain values: written as JSON and read again, they are the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter

from tarry.attach.listing import AttachmentState
from tarry.audit.recover import Recovered
from tarry.audit.status import Counts, InTier, PausedNow, RouterStatus
from tarry.audit.verdict import AuditVerdict, Late, Missing, Open, Shortage
from tarry.operations.audit import BalanceReport, RecoverReport, TierTotals, VerifyReport, WriteOffReport
from tarry.operations.status import AttachmentStatus, ServiceStatus
from tarry.store.history import Step, Timeline
from tarry.store.retention import PrunedHistory
from tarry.store.rows import Balance, Drift

NOW = datetime(2030, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
RETRY = "5f0c1d7e-0b1a-5c3d-9e2f-0123456789ab"
OPEN = Open(RETRY, 2, "m", "orders", "", "scheduled", "retry.delay.1h", NOW, rebuildable=True, expected=NOW)
CLAIMED = Open(RETRY, 1, None, "orders", "events", "claimed", None, NOW, rebuildable=False)
BALANCE = Balance(3, 2, 1, 0, 1, 0, 0, 1, 0, rounds=2)
TIERS = TierTotals(on_broker=3, expected=2)
VERDICT = AuditVerdict(
    missing=[Missing(OPEN, "overdue, and nowhere on the broker"), Missing(CLAIMED, "claimed, and its request is gone")],
    shortages=[Shortage("retry.delay.1h", 4, 1)],
    late=[Late(OPEN, ("retry.relay", "retry.audit"))],
    unjudged=["retry.delay.2s"],
)
RECOVERED = Recovered(sent=2, moved_on=1, not_rebuilt=[(RETRY, "its payload was not kept")], no_queue=["orders"])
STEP = Step(1, "scheduled", NOW, "router", None, {"tier": "retry.delay.1h", "delay_ms": 3_600_000})

REPORTS: list[Any] = [
    BalanceReport(BALANCE, Drift(2, -1, 5, 12, 12)),
    VerifyReport(ok=False, balance=BALANCE, tiers=TIERS, verdict=VERDICT),
    VerifyReport(ok=True, balance=BALANCE, tiers=TIERS, verdict=AuditVerdict()),
    RecoverReport(
        done=True, recoverable=1, reviews=2, tiers=TIERS, verdict=VERDICT, recovered=RECOVERED, sent_to_review=2
    ),
    WriteOffReport(done=True, chosen=VERDICT.missing, written_off=[RETRY], verdict=VERDICT),
    PrunedHistory(["transition_20300101"], 1, 2, 3, 4),
    ServiceStatus(
        topology=None,
        audit=Counts(1, 1, 1, 0, 2, 0, 0, 0, 3, 4),
        tiers=[InTier("retry.delay.1h", 1, None, NOW, None)],
        queues={"retry.scheduled": 0},
        paused=[PausedNow("orders", "holding", NOW, 2, None)],
        attachments=[
            AttachmentStatus("orders", "queue", AttachmentState.POLICY_GONE, "run: tarry attach orders", None)
        ],
        routers=[RouterStatus("host-7-ab", "host", 7, "0.1.0", NOW, NOW, True, 2.5, ["no Postgres"], False)],
        troubles=["Postgres does not answer."],
    ),
    Timeline(
        *(RETRY, "m", "orders", "scheduled", 1, 1, 3, "default", "retryable", "Timeout", "after 30 s", "9c1e"),
        *(NOW, NOW, None, None, "retry.delay.1h", None),
        steps=(STEP,),
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=[type(one).__name__ for one in REPORTS])
def test_a_report_is_read_back_from_json_unchanged(report: Any) -> None:
    adapter = TypeAdapter(type(report))
    assert adapter.validate_json(adapter.dump_json(report)) == report

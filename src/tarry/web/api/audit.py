"""The audit: totals, comparison with the broker, recovery and write-off; and the history of one message."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from tarry.audit.status import AttemptOutcomes
from tarry.audit.verify import AuditRules
from tarry.operations.audit import BalanceReport, RecoverReport, VerifyReport, WriteOffReport
from tarry.store.history import Timeline
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Duration, Moment, QueueName, Text, length_of

router = APIRouter(tags=["audit"])

GRACE = "A retry this long past its due time that was not seen to return is overdue."
SETTLE = "A message this close to the start or end of its wait is in flight, and not judged."
PATIENCE = "Repeat the comparison for this long while something is missing."
OFFERED_AGAIN = "How long the broker waits before it offers a message again that a queue did not take."


class AuditLimits(Requested):
    """Time limits of the audit."""

    grace: Duration = Field("30s", description=GRACE)
    settle: Duration = Field("2s", description=SETTLE)
    patience: Duration = Field("12s", description=PATIENCE)
    offered_again: Duration = Field("180s", description=OFFERED_AGAIN)

    def rules(self) -> AuditRules:
        return _rules(self.grace, self.settle, self.patience, self.offered_again)


class RecoverRequest(AuditLimits):
    """What to recover."""

    review: bool = Field(False, description="Also publish messages that were in review, if the review queue is empty.")
    execute: bool = Field(False, description="Do it; otherwise the answer says what would be done.")


class WriteOffRequest(AuditLimits):
    """What to write off, and why."""

    retry_ids: list[QueueName] = Field(
        default_factory=list,
        max_length=10_000,
        description="Only these, by id or its prefix; empty for all that `recover` cannot publish again.",
    )
    reason: Text = Field(description="Recorded in their history.")
    execute: bool = Field(False, description="Do it; otherwise the answer says what would be done.")


def _limits(
    *,
    grace: Annotated[Duration, Query(description=GRACE)] = "30s",
    settle: Annotated[Duration, Query(description=SETTLE)] = "2s",
    patience: Annotated[Duration, Query(description=PATIENCE)] = "12s",
    offered_again: Annotated[Duration, Query(description=OFFERED_AGAIN)] = "180s",
) -> AuditRules:
    return _rules(grace, settle, patience, offered_again)


def _rules(grace: str, settle: str, patience: str, offered_again: str) -> AuditRules:
    return AuditRules(
        length_of(grace), length_of(settle), length_of(patience).total_seconds(), length_of(offered_again)
    )


@router.get("/audit/balance", summary="The totals of the audit")
async def balance(_caller: Looker, operations: Operations) -> BalanceReport:
    """From the store only: the state of every request, and the drift of returns."""
    return await operations.balance()


@router.get("/audit/attempts", summary="Outcomes by attempt")
async def attempts(
    _caller: Looker,
    operations: Operations,
    *,
    within: Annotated[Duration, Query(description="Count the retries that returned within this time.")] = "24h",
    queue: Annotated[QueueName | None, Query(description="Count only retries that failed in this queue.")] = None,
) -> list[AttemptOutcomes]:
    """How many retries of each attempt succeeded or failed again: from which attempt on do retries not help?"""
    return await operations.outcomes(length_of(within), queue=queue)


@router.get("/audit/verify", summary="Compare the audit with the broker")
async def verify(
    _caller: Looker,
    operations: Operations,
    rules: Annotated[AuditRules, Depends(_limits)],
    *,
    since: Annotated[Moment | None, Query(description="Balance only retries that began at this time or later.")] = None,
    queue: Annotated[QueueName | None, Query(description="Balance only retries that failed in this queue.")] = None,
) -> VerifyReport:
    """`ok` is true if no retry is missing and every queue could be judged."""
    return await operations.verify(rules, since=since, queue=queue)


@router.post("/audit/recover", summary="Publish missing retries again")
async def recover(caller: Operator, operations: Operations, wanted: RecoverRequest) -> RecoverReport:
    """They are read from the store, and each waits for the rest of its delay. Safe to repeat."""
    acting = operations.acting_as(caller.actor(wanted.requested_by))
    return await acting.recover(wanted.rules(), review=wanted.review, execute=wanted.execute)


@router.post("/audit/write-off", summary="Close missing retries")
async def write_off(caller: Operator, operations: Operations, wanted: WriteOffRequest) -> WriteOffReport:
    """For retries that are missing for good. The reason is recorded in the history of each."""
    acting = operations.acting_as(caller.actor(wanted.requested_by))
    return await acting.write_off(
        wanted.rules(), retry_ids=wanted.retry_ids, reason=wanted.reason, execute=wanted.execute
    )


@router.get("/history/{called:path}", summary="The history of one message")
async def history(
    _caller: Looker,
    operations: Operations,
    called: Annotated[QueueName, Path(description="A message id, or a retry id or its prefix.")],
) -> list[Timeline]:
    """One timeline for each queue that it failed in."""
    return await operations.history(called)

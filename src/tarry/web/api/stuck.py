"""Stuck attempts: the list, and their recovery."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query
from pydantic import Field

from tarry.operations.stuck import StuckAttempt, StuckRecovery, Wanted
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Limit, QueueName, Text

router = APIRouter(prefix="/stuck", tags=["stuck"])


class RecoverStuckRequest(Requested):
    """Which attempts to recover, and how. Give one of `ids`, `queue` and `everything`."""

    ids: list[QueueName] = Field(default_factory=list, max_length=10_000, description="Retry ids or their prefixes.")
    queue: QueueName | None = Field(None, description="A queue, or a glob such as `orders.*`.")
    everything: bool = Field(default=False, description="All stuck attempts.")
    to_review: bool = Field(default=False, description="To review, and not to their queue.")
    at_once: bool = Field(default=False, description="Do not wait until the consumer timeout of the queue has passed.")
    reason: Text | None = Field(None, description="Recorded in the history.")


@router.get("", summary="List stuck attempts, the oldest first")
async def list_stuck(
    _caller: Looker,
    operations: Operations,
    *,
    queue: Annotated[QueueName | None, Query(description="A queue, or a glob.")] = None,
    limit: Limit = 50,
) -> list[StuckAttempt]:
    """Attempts that their consumer reported as started, without an outcome for longer than their limit.

    First attempts are not known to tarry, nor are those of consumers that do not report.
    """
    return await operations.list_stuck(queue=queue, limit=limit)


@router.post("/recover", summary="Recover stuck attempts")
async def recover_stuck(
    caller: Operator, operations: Operations, body: Annotated[RecoverStuckRequest, Body()]
) -> StuckRecovery:
    """Sends the stored messages again, or to review. A hung consumer may still finish: possibly a second delivery.

    Each attempt is recovered once. 404 if an id is unknown, 400 if it is not stuck, 409 if the only one that is named
    cannot be recovered; other problems are in the answer.
    """
    wanted = Wanted(
        ids=body.ids,
        queue=body.queue,
        everything=body.everything,
        to_review=body.to_review,
        at_once=body.at_once,
        reason=body.reason,
    )
    return await operations.acting_as(caller.actor(body.requested_by)).recover_stuck(wanted)

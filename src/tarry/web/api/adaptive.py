"""Decisions from history: the errors that are given up, and what operators have decided about errors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from tarry.operations.adaptive import AdaptiveList, ErrorChoiceChanged
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Limit, QueueName, Text

router = APIRouter(tags=["adaptive"])

OfQueue = Annotated[QueueName, Path(description="A queue.")]


class JudgingError(Requested):
    """Which error, and why."""

    error: Text = Field(description="Its fingerprint, or the beginning of it.")
    reason: Text | None = Field(None, description="Shown with the decision.")


class RetryingError(JudgingError):
    """Which error, for how long, and why."""

    always: bool = Field(default=False, description="Never give it up; false: judge it by what happens from now on.")


@router.get("/adaptive", summary="Errors that are given up")
async def list_given_up(
    _caller: Looker,
    operations: Operations,
    *,
    queue: Annotated[QueueName | None, Query(description="Only of this queue.")] = None,
    limit: Limit = 50,
) -> AdaptiveList:
    """Errors whose messages go to review at once, with the evidence; and what operators have decided about errors."""
    return await operations.list_given_up(queue=queue, limit=limit)


@router.post("/queues/{name:path}/adaptive/retry", summary="Retry an error again")
async def retry_error(
    caller: Operator, operations: Operations, name: OfQueue, body: RetryingError
) -> ErrorChoiceChanged:
    """Routers follow within seconds. Messages that are in review stay there. 404 if the queue has no such error."""
    acting = operations.acting_as(caller.actor(body.requested_by))
    return await acting.retry_error(name, body.error, always=body.always, reason=body.reason)


@router.post("/queues/{name:path}/adaptive/auto", summary="Judge an error by all of its history again")
async def judge_error(
    caller: Operator, operations: Operations, name: OfQueue, body: JudgingError
) -> ErrorChoiceChanged:
    """Undoes the route above. 404 if nothing is decided about the error."""
    acting = operations.acting_as(caller.actor(body.requested_by))
    return await acting.judge_error(name, body.error, reason=body.reason)

"""What would happen to a message, with the topology of this service."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from tarry.operations.explain import Explained, PolicySchedule
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import QueueName, Text

router = APIRouter(prefix="/explain", tags=["explain"])


class ExplainRequest(Requested):
    """Which messages."""

    messages: list[dict[str, Any]] = Field(
        min_length=1, max_length=100, description="As the management API shows them: `properties`, `payload`, …"
    )
    queue: QueueName | None = Field(None, description="Explain a reject in this queue.")
    ask: bool = Field(False, description="Ask the policy's eligibility endpoint.")


class FirstRequest(Requested):
    """Which queue."""

    queue: QueueName
    ask: bool = Field(False, description="Ask the policy's eligibility endpoint.")


@router.post("", summary="Explain what would happen to messages")
async def explain(_caller: Operator, operations: Operations, wanted: ExplainRequest) -> list[Explained]:
    """Policy, delay, tiers and due time, with the reasons. Changes nothing."""
    return await operations.explain(wanted.messages, queue=wanted.queue, ask=wanted.ask)


@router.post("/first", summary="Explain the first message of a queue")
async def explain_first(_caller: Operator, operations: Operations, wanted: FirstRequest) -> Explained:
    """The message is requeued, and marked as redelivered. 422 if the queue is empty."""
    return await operations.explain_first(wanted.queue, ask=wanted.ask)


@router.get("/schedules", summary="Schedules of policies")
async def schedules(
    _caller: Looker,
    operations: Operations,
    *,
    policy: Annotated[Text | None, Query(description="The policy of this name.")] = None,
    queue: Annotated[QueueName | None, Query(description="The policy for failures in this queue.")] = None,
    priority: Annotated[Text | None, Query(description="With `queue`: the priority of the message.")] = None,
    job_type: Annotated[Text | None, Query(description="With `queue`: the job type of the message.")] = None,
) -> list[PolicySchedule]:
    """Without parameters, of all policies in order."""
    return await operations.policy_schedules(policy=policy, queue=queue, priority=priority, job_type=job_type)

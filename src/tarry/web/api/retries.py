"""Retries: the list, one retry with its timeline, its payload; cancel and retry."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tarry.core.states import State
from tarry.operations.cancel import Diverted
from tarry.operations.lookup import Order, RetryFilter, RetryRow, StoredPayload
from tarry.operations.paging import Page
from tarry.operations.retry_now import Retried
from tarry.operations.review.browse import EditedMessage
from tarry.store.history import Timeline
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Cursor, Limit, Moment, Owner, QueueName, Text

router = APIRouter(prefix="/retries", tags=["retries"])


@router.get("", summary="List retries")
async def list_them(
    _caller: Looker,
    operations: Operations,
    *,
    state: Annotated[
        list[State] | None, Query(max_length=9, description="The state; repeat the parameter for several.")
    ] = None,
    queue: Annotated[QueueName | None, Query(description="The queue they failed in.")] = None,
    fingerprint: Annotated[Text | None, Query(description="The fingerprint of the error, or its prefix.")] = None,
    message_id: Annotated[QueueName | None, Query(description="The message id.")] = None,
    due_after: Annotated[Moment | None, Query(description="Due at this time or later; ISO 8601, UTC.")] = None,
    due_before: Annotated[Moment | None, Query(description="Due before this time.")] = None,
    owner: Annotated[Owner | None, Query(description="Whom the messages belong to.")] = None,
    policy: Annotated[Text | None, Query(description="The policy that they follow.")] = None,
    error: Annotated[
        Text | None, Query(description="The type of the error, or a part of its reason, in any case of letters.")
    ] = None,
    order: Annotated[
        Order | None,
        Query(description="`due`: only retries that wait, the next due first; the default with due_after, due_before."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RetryRow]:
    """Without payloads. In order of id, a retry that exists while all pages are read is listed exactly once."""
    wanted = RetryFilter(state or None, queue, fingerprint, message_id, due_after, due_before, owner, policy, error)
    return await operations.list_retries(wanted, order=order, limit=limit, cursor=cursor)


class WhichRetries(BaseModel):
    """Which retries: those that meet every condition given."""

    model_config = ConfigDict(extra="forbid")

    states: list[State] | None = Field(None, max_length=9, description="In one of these states.")
    queue: QueueName | None = Field(None, description="The queue they failed in.")
    fingerprint: Text | None = Field(None, description="The fingerprint of the error, or its prefix.")
    message_id: QueueName | None = None
    due_after: Moment | None = Field(None, description="Due at this time or later.")
    due_before: Moment | None = Field(None, description="Due before this time.")
    owner: Owner | None = Field(None, description="Whom the messages belong to.")
    policy: Text | None = Field(None, description="The policy that they follow.")
    error: Text | None = Field(None, description="The type of the error, or a part of its reason.")

    def filter(self) -> RetryFilter:
        return RetryFilter(**self.model_dump())


RetryId = Annotated[QueueName, Path(description="A retry id or its prefix.")]


@router.get("/{retry_id}", summary="One retry with its timeline")
async def show_one(_caller: Looker, operations: Operations, retry_id: RetryId) -> Timeline:
    """Its state and all its steps. 409 if several ids begin with `retry_id`."""
    return await operations.show_retry(retry_id)


@router.get("/{retry_id}/payload", summary="The payload of a retry")
async def show_payload(_caller: Operator, operations: Operations, retry_id: RetryId) -> StoredPayload:
    """Needs the role operate."""
    return await operations.show_payload(retry_id)


@router.get("/{retry_id}/edits", summary="How a message was edited")
async def list_edits(_caller: Operator, operations: Operations, retry_id: RetryId) -> list[EditedMessage]:
    """Who changed what when it was redriven, and the message as it was before. Needs the role operate."""
    return await operations.list_edits(retry_id)


Called = Annotated[
    QueueName, Path(description="A retry id or its prefix; or a message id, if only one retry of it is suitable.")
]


class ActionRequest(Requested):
    """The reason."""

    reason: Text | None = Field(None, description="Recorded in the history.")


ActionBody = Annotated[ActionRequest | None, Body()]


@router.post("/{called:path}/cancel", summary="Cancel a waiting retry")
async def cancel(caller: Operator, operations: Operations, called: Called, body: ActionBody = None) -> Diverted:
    """`cancelled`: it will not return. `pending`: the outcome is not known yet, and the service continues.

    409 if it has already returned, is being routed, or a cancel or retry-now is in progress; 400 if it does not wait.
    """
    wanted = body or ActionRequest()
    return await operations.acting_as(caller.actor(wanted.requested_by)).cancel(called, reason=wanted.reason)


@router.post("/{called:path}/retry", summary="Retry now: a waiting retry, or a message in review")
async def retry_now(caller: Operator, operations: Operations, called: Called, body: ActionBody = None) -> Retried:
    """`retried`: the message was sent. One that waited will be diverted when it comes due, so that it does not return
    twice; one in review was redriven. `pending` as for cancel.

    402 if the credit check refuses it, 503 if the credit check gives no answer. 409 as for cancel, and if its payload
    was not stored, its destination is paused, or another job has it; `code` names the reason.
    """
    wanted = body or ActionRequest()
    return await operations.acting_as(caller.actor(wanted.requested_by)).retry_now(called, reason=wanted.reason)

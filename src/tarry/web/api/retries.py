"""Retries: the list, one with its timeline, and its payload for those who may see it."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tarry.control.lookup import NOBODY, Place, Wanted, list_retries, payload_of, timeline_of
from tarry.core.states import State
from tarry.web.api.auth import Looker, Operator
from tarry.web.api.desk import TheDesk
from tarry.web.api.fields import Moment, QueueName, Text
from tarry.web.api.paging import Cursor, Limit, Page, read_cursor, write_cursor

router = APIRouter(prefix="/retries", tags=["retries"])


class Listed(BaseModel):
    """A retry in a list; payloads are never in one."""

    model_config = ConfigDict(from_attributes=True)

    retry_id: str
    message_id: str | None
    queue: str = Field(description="The queue it failed in.")
    state: str
    round: int
    retry_count: int = Field(description="Retries spent once it has returned.")
    max_retries: int | None
    policy: str | None
    error_class: str | None
    error_type: str | None
    error_reason: str | None = Field(description="Its beginning, in lists.")
    fingerprint: str | None = Field(description="The same for errors that differ only in numbers and ids.")
    tier: str | None = Field(description="The queue that it waits in first.")
    first_failed: datetime
    due: datetime | None
    returned: datetime | None
    drift_ms: int | None = Field(description="How long after its due moment it last came back.")
    body_size: int | None = Field(description="Bytes of the stored payload; null where it was not kept.")


class StepTaken(BaseModel):
    """One step of a timeline."""

    model_config = ConfigDict(from_attributes=True)

    round: int
    state: str
    at: datetime
    actor: str
    reason: str | None
    detail: dict[str, Any] | None


class WithTimeline(Listed):
    """One retry, and everything that happened to it."""

    steps: list[StepTaken] = Field(description="In order; of a very long one the latest thousand.")


class Stored(BaseModel):
    """A message as it was stored."""

    body: str = Field(description="The payload, in base64.")
    size: int
    properties: dict[str, str | int]
    headers: dict[str, str | int | None] = Field(description="null where one is neither text nor a whole number.")


@router.get("", summary="List retries")
async def list_them(
    _caller: Looker,
    desk: TheDesk,
    *,
    state: Annotated[list[State] | None, Query(max_length=9, description="Repeat it for several.")] = None,
    queue: Annotated[QueueName | None, Query(description="The queue they failed in.")] = None,
    fingerprint: Annotated[Text | None, Query(description="Of their error, or the beginning of it.")] = None,
    message_id: Annotated[QueueName | None, Query(description="The message's own id.")] = None,
    due_after: Annotated[Moment | None, Query(description="Due at this moment or later; ISO 8601, UTC.")] = None,
    due_before: Annotated[Moment | None, Query(description="Due before this moment.")] = None,
    order: Annotated[
        Literal["id", "due"] | None,
        Query(
            description="`due`: only what waits, the next to come due first; the default with due_after, due_before."
        ),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[Listed]:
    """Without payloads. In the order of their ids, each that is there for the whole walk is listed exactly once."""
    by = order or ("due" if due_after or due_before else "id")
    due, after = read_cursor(cursor, by) if cursor else (None, NOBODY)
    wanted = Wanted(state or None, queue, fingerprint, message_id, due_after, due_before)
    found = await list_retries(desk.books, wanted, Place(by, after, due), limit + 1)
    items = [Listed.model_validate(one) for one in found[:limit]]
    last = found[limit - 1] if len(found) > limit else None
    moment = last.due if last and by == "due" else None
    return Page(items=items, next=write_cursor(by, moment, last.retry_id) if last else None)


RetryId = Annotated[QueueName, Path(description="A retry id, or the beginning of one.")]


@router.get("/{retry_id}", summary="One retry with its timeline")
async def show_one(_caller: Looker, desk: TheDesk, retry_id: RetryId) -> WithTimeline:
    """Where it stands, and every step it took. 409 if several ids begin so."""
    return WithTimeline.model_validate(await timeline_of(desk.books, retry_id), from_attributes=True)


@router.get("/{retry_id}/payload", summary="Its payload")
async def show_payload(_caller: Operator, desk: TheDesk, retry_id: RetryId) -> Stored:
    """Needs the role operate."""
    found = await payload_of(desk.books, retry_id)
    body = base64.b64encode(found.body).decode()
    return Stored(body=body, size=len(found.body), properties=found.properties, headers=found.headers)

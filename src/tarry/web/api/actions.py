"""Who did what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from tarry.control.lookup import latest_actions
from tarry.web.api.auth import Looker
from tarry.web.api.desk import TheDesk
from tarry.web.api.fields import QueueName, Text
from tarry.web.api.paging import Cursor, Limit, Page, read_cursor, write_cursor

router = APIRouter(prefix="/actions", tags=["actions"])


class ActionDone(BaseModel):
    """One action of an operator."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    at: datetime
    actor: str = Field(description="The token's name, and who it acted for; or user@host at a terminal.")
    kind: str
    target: str = Field(description="What it was done to.")
    detail: dict[str, Any]
    outcome: dict[str, Any] | None = Field(description="null while it is under way, or if it was cut off.")
    finished: datetime | None


@router.get("", summary="Who did what, the latest first")
async def list_actions(
    _caller: Looker,
    desk: TheDesk,
    *,
    actor: Annotated[QueueName | None, Query(description="Exactly as it is recorded.")] = None,
    kind: Annotated[Text | None, Query(description="As in cancel or pause.")] = None,
    target: Annotated[
        QueueName | None, Query(description="A retry id, a queue, a job; the beginning of an id will do.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ActionDone]:
    """Also what was done with the command line."""
    moment, last = read_cursor(cursor, "at") if cursor else (None, "")
    before = (moment, last) if moment else None
    found = await latest_actions(desk.books, actor=actor, kind=kind, target=target, before=before, limit=limit + 1)
    more = found[limit - 1] if len(found) > limit else None
    items = [ActionDone.model_validate(one) for one in found[:limit]]
    return Page(items=items, next=write_cursor("at", more.at, more.id) if more else None)

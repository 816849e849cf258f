"""The action log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tarry.operations.lookup import ActionRow
from tarry.operations.paging import Page
from tarry.web.api.auth import Looker
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Cursor, Limit, QueueName, Text

router = APIRouter(prefix="/actions", tags=["actions"])


@router.get("", summary="List actions, latest first")
async def list_actions(
    _caller: Looker,
    operations: Operations,
    *,
    actor: Annotated[QueueName | None, Query(description="The actor, exactly as recorded.")] = None,
    kind: Annotated[Text | None, Query(description="The kind, such as cancel or pause.")] = None,
    target: Annotated[QueueName | None, Query(description="A retry id or its prefix, a queue or a job.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ActionRow]:
    """Includes actions from the command line."""
    return await operations.list_actions(actor=actor, kind=kind, target=target, limit=limit, cursor=cursor)

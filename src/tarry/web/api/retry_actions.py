"""Acting on one retry: cancel it, or retry it now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path
from pydantic import Field

from tarry.control import cancel as acts
from tarry.control.cancel import Diverted
from tarry.web.api.auth import Operator, Requested
from tarry.web.api.desk import TheDesk
from tarry.web.api.fields import QueueName, Text

router = APIRouter(prefix="/retries", tags=["retries"])

Called = Annotated[
    QueueName, Path(description="A retry id, or the beginning of one; or a message id, if only one retry of it waits.")
]


class Wish(Requested):
    """Why."""

    reason: Text | None = Field(None, description="Recorded in the history.")


Said = Annotated[Wish | None, Body()]


@router.post("/{called}/cancel", summary="Cancel it")
async def cancel(caller: Operator, desk: TheDesk, called: Called, said: Said = None) -> Diverted:
    """`cancelled`: it will not return. `pending`: there is no word of it yet, and the service goes on with it.

    409 if it has already returned, is being routed, or somebody has asked for it before; 400 if nothing of it waits.
    """
    wish = said or Wish()
    return await acts.cancel(desk, called, actor=caller.actor(wish.requested_by), reason=wish.reason)


@router.post("/{called}/retry-now", summary="Send it at once")
async def retry_now(caller: Operator, desk: TheDesk, called: Called, said: Said = None) -> Diverted:
    """`retried`: a copy is on its way, and the waiting one will be diverted. `pending` as for cancel.

    409 as for cancel, and if its payload was not kept or its destination is paused.
    """
    wish = said or Wish()
    return await acts.retry_now(desk, called, actor=caller.actor(wish.requested_by), reason=wish.reason)

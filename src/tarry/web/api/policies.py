"""What policies do, by the history, and what others would have done."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import Field

from tarry.errors import Code, ConflictError
from tarry.operations.policy_replay import PolicyReplay
from tarry.operations.remote import MOST_OVER_HTTP
from tarry.topology.toml_file import LARGEST
from tarry.web.api.auth import Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Moment, Text

router = APIRouter(prefix="/policies", tags=["policies"])


class ReplayRequest(Requested):
    """Which policies, and which part of the history."""

    toml: str = Field(
        max_length=LARGEST, description="[[policy]] and [[base]] tables: they replace those of the same name."
    )
    since: Moment = Field(description="Messages that first failed since then.")
    label: Text = Field("changes", description="Names the TOML in errors.")
    most: int = Field(MOST_OVER_HTTP, ge=1, le=MOST_OVER_HTTP, description="Of more messages, a part is replayed.")


@router.post("/replay", summary="Replay the history by changed policies")
async def replay(_caller: Operator, operations: Operations, request: Request, wanted: ReplayRequest) -> PolicyReplay:
    """Attempts, times to success, and what is exhausted: as it was, and by the changed policies. Changes nothing.

    One at a time: 409 while another one runs. 422 if the TOML has a mistake, 404 if there is nothing to replay.
    """
    running: asyncio.Lock = request.app.state.replaying
    if running.locked():
        error = ConflictError("Another replay is running on this service: try again when it is done.")
        error.code = Code.TOO_MANY_IN_PROGRESS
        raise error
    async with running:
        return await operations.replay_policies(wanted.toml, since=wanted.since, label=wanted.label, most=wanted.most)

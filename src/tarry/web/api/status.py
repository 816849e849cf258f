"""How things stand, as `tarry status` shows it."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from tarry.control.standing import Standing
from tarry.web.api.auth import Looker
from tarry.web.api.desk import TheService
from tarry.web.api.shared import Shared
from tarry.web.health import Readiness, readiness

router = APIRouter(tags=["status"])


class Plain(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class InBooks(Plain):
    """How many retries are in which state."""

    waiting: int
    due_in_a_minute: int
    due_in_an_hour: int
    in_review: int
    held: int
    unroutable: int
    claimed: int
    overdue: int = Field(description="More than 30 seconds past their due moment, and not seen to return.")


class TierNow(Plain):
    """A queue that messages wait in."""

    tier: str
    open: int | None = Field(description="By the books; null where they could not be asked.")
    depth: int | None = Field(description="On the broker; null where it could not be asked.")
    oldest: datetime | None
    next_due: datetime | None


class Router(BaseModel):
    """This process."""

    status: Readiness
    reasons: list[str]


class Status(Plain):
    """One look, a few seconds old at most."""

    books: InBooks | None = Field(description="null while Postgres is away.")
    tiers: list[TierNow]
    queues: dict[str, int] = Field(description="Messages in the queues that somebody reads.")
    troubles: list[str] = Field(description="What could not be asked, and why.")


class WholeStatus(Status):
    """With the process that answers."""

    router: Router


@router.get("/status", summary="How things stand")
async def show_status(_caller: Looker, service: TheService, request: Request) -> WholeStatus:
    """What waits where, what is due next, what needs a person. Always answers, with what can be had."""
    standing: Shared[Standing] = request.app.state.standing
    ready, reasons = readiness(service)
    found = Status.model_validate(await standing.get())
    return WholeStatus(**dict(found), router=Router(status=ready, reasons=reasons))

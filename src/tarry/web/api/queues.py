"""Destinations: which there are, pausing and resuming them; and the intake."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from tarry.control import holds
from tarry.control.held import Held, Holds, known_destinations, show_holds
from tarry.control.holds import RATE, Paused, Resumed
from tarry.control.intake import Intake, pause_intake, read_intake, resume_intake
from tarry.core.durations import PATTERN, parse_duration
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.desk import TheDesk
from tarry.web.api.fields import QueueName, Text

router = APIRouter(tags=["queues"])

LONGEST_MS = 3650 * 86_400_000


def _sane(text: str) -> str:
    if not 0 < parse_duration(text) <= LONGEST_MS:
        raise ValueError("should be more than nothing and at most ten years")
    return text


Lasting = Annotated[str, StringConstraints(max_length=40, pattern=PATTERN), AfterValidator(_sane)]
"""`30m`, `1h30m`."""

Name = Annotated[QueueName, Path(description="A queue, `exchange:NAME`, or a glob such as `orders.*`.")]


class Queue(BaseModel):
    """A destination of retries."""

    name: str
    hold: Held | None = Field(description="null where nothing is held.")


class Queues(BaseModel):
    """All that are known."""

    items: list[Queue]


class Pausing(Requested):
    """For how long, and why."""

    reason: Text | None = Field(None, description="Shown to everybody who asks why nothing moves.")
    lasts: Lasting | None = Field(None, description="It resumes by itself after so long, as in 30m; null: for good.")


class Resuming(Requested):
    """How fast, and how carefully."""

    rate: int = Field(RATE, ge=1, le=100_000, description="Messages a second, for each destination.")
    canary: bool = Field(default=False, description="First 1, then 10, then 100; the rest only if those succeed.")
    look: Lasting = Field("10s", description="How long each canary is watched at least.")


class Intaking(Requested):
    """Why."""

    reason: Text | None = Field(None, description="Shown to everybody who asks why nothing moves.")


@router.get("/queues", summary="Destinations, and which of them are held")
async def list_queues(
    _caller: Looker, desk: TheDesk, match: Annotated[QueueName, Query(description="A glob.")] = "*"
) -> Queues:
    """Attached, delivered to before, with something open, or held."""
    held = {one.destination: one for one in (await show_holds(desk)).holds}
    return Queues(items=[Queue(name=name, hold=held.get(name)) for name in await known_destinations(desk, match)])


@router.get("/holds", summary="What is paused")
async def list_holds(_caller: Looker, desk: TheDesk) -> Holds:
    """By whom, why, until when; how much waits, and how far a release is."""
    return await show_holds(desk)


@router.post("/queues/{name:path}/pause", summary="Hold returns to it")
async def pause(caller: Operator, desk: TheDesk, name: Name, said: Annotated[Pausing | None, Body()] = None) -> Paused:
    """Or to all that match a glob, also those that appear later. 404 if nobody knows a destination of that name."""
    wish = said or Pausing()
    actor, lasts = caller.actor(wish.requested_by), _length(wish.lasts) if wish.lasts else None
    return await holds.pause(desk, name, actor=actor, reason=wish.reason, lasts=lasts)


@router.post("/queues/{name:path}/resume", summary="Let go what is held")
async def resume(
    caller: Operator, desk: TheDesk, name: Name, said: Annotated[Resuming | None, Body()] = None
) -> Resumed:
    """The service does it, and goes on after a restart; /holds says how far it is. 404 if nothing of it is paused."""
    wish = said or Resuming()
    actor, look = caller.actor(wish.requested_by), _length(wish.look)
    return await holds.resume(desk, name, actor=actor, rate=wish.rate, canary=wish.canary, look=look)


@router.get("/intake", summary="Whether requests are taken")
async def show_intake(_caller: Looker, desk: TheDesk) -> Intake:
    """And who said so."""
    return await read_intake(desk)


@router.post("/intake/pause", summary="Take no requests")
async def stop_intake(caller: Operator, desk: TheDesk, said: Annotated[Intaking | None, Body()] = None) -> Intake:
    """They wait in their queue; what already waits in tiers returns as it should."""
    wish = said or Intaking()
    return await pause_intake(desk, actor=caller.actor(wish.requested_by), reason=wish.reason)


@router.post("/intake/resume", summary="Take requests again")
async def open_intake(caller: Operator, desk: TheDesk, said: Annotated[Intaking | None, Body()] = None) -> Intake:
    """All routers follow within a second."""
    wish = said or Intaking()
    return await resume_intake(desk, actor=caller.actor(wish.requested_by), reason=wish.reason)


def _length(text: str) -> timedelta:
    return timedelta(milliseconds=parse_duration(text))

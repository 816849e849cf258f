"""Destinations: the list, pause and resume; pauses of policies, job types and types; and the intake."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tarry.operations.intake import Intake
from tarry.operations.pause import RATE, DestinationPause, Paused, Pauses, ReleaseOptions, Resumed
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Lasting, QueueName, Text, length_of

router = APIRouter(tags=["queues"])

Name = Annotated[QueueName, Path(description="A queue, `exchange:NAME`, or a glob such as `orders.*`.")]


class QueueItem(BaseModel):
    """A destination of retries."""

    name: str
    paused: DestinationPause | None = Field(description="null if it is not paused.")


class Queues(BaseModel):
    """All known destinations."""

    items: list[QueueItem]


class Releasing(BaseModel):
    """Rate and canary of a release."""

    model_config = ConfigDict(extra="forbid")

    rate: int = Field(RATE, ge=1, le=100_000, description="Messages per second, for each held queue.")
    canary: bool = Field(default=False, description="First 1, then 10, then 100; the rest only if those succeed.")
    observe: Lasting = Field("10s", description="Observe each canary for at least this long.")

    def options(self) -> ReleaseOptions:
        return ReleaseOptions(self.rate, self.canary, length_of(self.observe))


class Pausing(Requested):
    """How long to pause, and why."""

    reason: Text | None = Field(None, description="Shown with the pause.")
    lasts: Lasting | None = Field(None, description="Resume automatically after this long, as in 30m; null: never.")
    at_end: Releasing | None = Field(
        None, description="With `lasts`: how messages are released then; null: at 500 a second, without a canary."
    )

    def options(self) -> dict[str, Any]:
        lasts = length_of(self.lasts) if self.lasts else None
        return {"reason": self.reason, "lasts": lasts, "at_end": self.at_end.options() if self.at_end else None}


class Resuming(Releasing, Requested):
    """Rate and canary of the release."""


class Scoped(BaseModel):
    """What is paused."""

    scope: Literal["policy", "job-type", "automatic-retries", "stuck-recovery"]
    name: Text | None = Field(None, description="The policy or the job type; null for the other scopes.")


class PausingScope(Scoped, Pausing):
    """What to pause, how long, and why."""


class ResumingScope(Scoped, Resuming):
    """What to resume, and how."""


class IntakeRequest(Requested):
    """The reason."""

    reason: Text | None = Field(None, description="Shown with the pause.")


class PausingIntake(IntakeRequest):
    """How long to pause, and why."""

    lasts: Lasting | None = Field(None, description="Resume automatically after this long, as in 30m; null: never.")


@router.get("/queues", summary="Destinations, and which of them are paused")
async def list_queues(
    _caller: Looker, operations: Operations, match: Annotated[QueueName, Query(description="A glob.")] = "*"
) -> Queues:
    """Destinations that are attached, were delivered to before, have open retries, or are paused."""
    shown = (await operations.show_pauses()).paused_destinations
    paused = {one.destination: one for one in shown if one.is_destination}
    return Queues(
        items=[QueueItem(name=name, paused=paused.get(name)) for name in await operations.destinations(match)]
    )


@router.get("/pauses", summary="What is paused")
async def list_pauses(_caller: Looker, operations: Operations) -> Pauses:
    """Who paused it, why and until when; how many messages are held; the progress of a release."""
    return await operations.show_pauses()


@router.post("/pauses", summary="Pause a policy, a job type, automatic retries, or the recovery of stuck messages")
async def pause_scope(caller: Operator, operations: Operations, body: PausingScope) -> Paused:
    """`without_key` counts waiting retries that an earlier version scheduled: the pause does not apply to them. 404 if
    there is no such policy.
    """
    acting = operations.acting_as(caller.actor(body.requested_by))
    return await acting.pause(body.name or "", scope=body.scope, **body.options())


@router.post("/pauses/resume", summary="Resume what POST /pauses paused")
async def resume_scope(caller: Operator, operations: Operations, body: ResumingScope) -> Resumed:
    """The service releases held messages, and continues after a restart. A message that another pause applies to stays
    held. 404 if it is not paused.
    """
    acting, how = operations.acting_as(caller.actor(body.requested_by)), body.options()
    return await acting.resume(body.name or "", scope=body.scope, rate=how.rate, canary=how.canary, observe=how.observe)


@router.post("/queues/{name:path}/pause", summary="Pause returns to a destination")
async def pause(
    caller: Operator, operations: Operations, name: Name, body: Annotated[Pausing | None, Body()] = None
) -> Paused:
    """Also pauses destinations that match a glob and appear later. 404 if no destination has that name."""
    wanted = body or Pausing()
    acting = operations.acting_as(caller.actor(wanted.requested_by))
    return await acting.pause(name, **wanted.options())


@router.post("/queues/{name:path}/resume", summary="Release held messages")
async def resume(
    caller: Operator, operations: Operations, name: Name, body: Annotated[Resuming | None, Body()] = None
) -> Resumed:
    """The service releases them, and continues after a restart; /pauses shows the progress. 404 if it is not paused."""
    wanted = body or Resuming()
    acting = operations.acting_as(caller.actor(wanted.requested_by))
    return await acting.resume(name, rate=wanted.rate, canary=wanted.canary, observe=length_of(wanted.observe))


@router.get("/intake", summary="State of the intake")
async def show_intake(_caller: Looker, operations: Operations) -> Intake:
    """Whether it is paused, and who paused or resumed it."""
    return await operations.show_intake()


@router.post("/intake/pause", summary="Pause the intake")
async def pause_intake(
    caller: Operator, operations: Operations, body: Annotated[PausingIntake | None, Body()] = None
) -> Intake:
    """Requests wait in their queue; messages in tiers return as usual."""
    wanted = body or PausingIntake()
    lasts = length_of(wanted.lasts) if wanted.lasts else None
    acting = operations.acting_as(caller.actor(wanted.requested_by))
    return await acting.pause_intake(reason=wanted.reason, lasts=lasts)


@router.post("/intake/resume", summary="Resume the intake")
async def resume_intake(
    caller: Operator, operations: Operations, body: Annotated[IntakeRequest | None, Body()] = None
) -> Intake:
    """All routers follow within a second."""
    wanted = body or IntakeRequest()
    return await operations.acting_as(caller.actor(wanted.requested_by)).resume_intake(reason=wanted.reason)

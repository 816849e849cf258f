"""Destinations: the list, pause and resume; pauses of policies, job types and types; and the intake."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tarry.operations.breaker import BreakerView
from tarry.operations.intake import Intake
from tarry.operations.overview import DestinationNumbers
from tarry.operations.pause import RATE, DestinationPause, Paused, Pauses, ReleaseOptions, Resumed
from tarry.operations.throttle import Throttled, Unthrottled
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


class Throttling(Requested):
    """The rate, how long, and why."""

    rate: int = Field(ge=1, le=100_000, description="The most returns a second, for each destination.")
    reason: Text | None = Field(None, description="Shown with the throttle.")
    lasts: Lasting | None = Field(None, description="End automatically after this long, as in 2h; null: never.")


class Unthrottling(Requested):
    """The reason."""

    reason: Text | None = Field(None, description="Stored in the action log.")


class OpeningBreaker(Requested):
    """How long to keep it open, and why."""

    reason: Text | None = Field(None, description="Shown with the breaker.")
    lasts: Lasting | None = Field(None, description="Automatic again after this long, as in 30m; null: never.")


class ClosingBreaker(Requested):
    """Why."""

    reason: Text = Field(description="Shown with the breaker.")


class FreeingBreaker(Requested):
    """The reason."""

    reason: Text | None = Field(None, description="Stored in the action log.")


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


@router.get("/destinations", summary="Destinations with their numbers")
async def list_destinations(
    _caller: Looker, operations: Operations, match: Annotated[QueueName, Query(description="A glob.")] = "*"
) -> list[DestinationNumbers]:
    """What each destination has now: its depth, and its retries that wait, are held, in review or unroutable."""
    return await operations.destination_numbers(match)


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


@router.post("/queues/{name:path}/throttle", summary="Limit the returns to a destination")
async def throttle(caller: Operator, operations: Operations, name: Name, body: Throttling) -> Throttled:
    """At most `rate` returns a second; the rest is held, in order. Replaces an earlier throttle of the same name or
    glob, and also applies to destinations that match a glob and appear later. 404 if no destination has that name.
    """
    acting, lasts = operations.acting_as(caller.actor(body.requested_by)), length_of(body.lasts) if body.lasts else None
    return await acting.throttle(name, rate=body.rate, reason=body.reason, lasts=lasts)


@router.post("/queues/{name:path}/unthrottle", summary="End the throttles of a destination")
async def unthrottle(
    caller: Operator, operations: Operations, name: Name, body: Annotated[Unthrottling | None, Body()] = None
) -> Unthrottled:
    """The service releases what waits, at 500 a second. The limit of a policy (`max_rate`) stays. 404 if no operator
    has throttled it.
    """
    wanted = body or Unthrottling()
    return await operations.acting_as(caller.actor(wanted.requested_by)).unthrottle(name, reason=wanted.reason)


@router.get("/breakers", summary="Circuit breakers")
async def list_breakers(_caller: Looker, operations: Operations) -> list[BreakerView]:
    """The breakers of all known queues: their state, the share of returns that fail again, the next probe, and why."""
    return await operations.list_breakers()


@router.post("/queues/{name:path}/breaker/open", summary="Keep a breaker open")
async def open_breaker(
    caller: Operator, operations: Operations, name: Name, body: Annotated[OpeningBreaker | None, Body()] = None
) -> BreakerView:
    """Nothing returns to the queue until it is closed or automatic again, or for `lasts`. 404 if no policy of the queue
    has a breaker.
    """
    wanted = body or OpeningBreaker()
    lasts = length_of(wanted.lasts) if wanted.lasts else None
    acting = operations.acting_as(caller.actor(wanted.requested_by))
    return await acting.open_breaker(name, reason=wanted.reason, lasts=lasts)


@router.post("/queues/{name:path}/breaker/close", summary="Keep a breaker closed")
async def close_breaker(caller: Operator, operations: Operations, name: Name, body: ClosingBreaker) -> BreakerView:
    """Whatever fails, it does not open until it is automatic again. What waits is released at 500 a second, unless an
    operator has paused the queue. 404 if no policy of the queue has a breaker.
    """
    return await operations.acting_as(caller.actor(body.requested_by)).close_breaker(name, reason=body.reason)


@router.post("/queues/{name:path}/breaker/auto", summary="Let a breaker open and close by itself again")
async def free_breaker(
    caller: Operator, operations: Operations, name: Name, body: Annotated[FreeingBreaker | None, Body()] = None
) -> BreakerView:
    """One that is open becomes half-open at once. 404 if no policy of the queue has a breaker."""
    wanted = body or FreeingBreaker()
    return await operations.acting_as(caller.actor(wanted.requested_by)).free_breaker(name, reason=wanted.reason)


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

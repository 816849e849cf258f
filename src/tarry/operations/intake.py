"""Pauses and resumes the intake: while paused, requests wait in their queue, and messages in tiers still return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import structlog

from tarry.errors import AuditError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.tasks import sleep_unless

log = structlog.get_logger()

EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Intake:
    """Whether requests are accepted, and who set that."""

    paused: bool
    actor: str | None = None
    reason: str | None = None
    at: datetime | None = None
    until: datetime | None = None
    """When the pause ends by itself; None for never."""

    @property
    def note(self) -> str | None:
        """Why no requests are routed, for health and status; None if the intake is not paused."""
        if not self.paused:
            return None
        why = f": {self.reason}" if self.reason else ""
        until = f", until {self.until:%Y-%m-%d %H:%M:%S %Z}" if self.until else ""
        return f"the intake was paused by {self.actor} at {self.at:%Y-%m-%d %H:%M:%S %Z}{until}{why}"


async def pause_intake(
    context: OperatorContext, *, actor: str, reason: str | None = None, lasts: timedelta | None = None
) -> Intake:
    """Indefinitely, or for the time given. Its end is counted by Postgres's clock, and needs no service."""
    return await _set(context, actor, reason, paused=True, lasts=lasts)


async def resume_intake(context: OperatorContext, *, actor: str, reason: str | None = None) -> Intake:
    return await _set(context, actor, reason, paused=False)


async def read_intake(context: OperatorContext) -> Intake:
    row = await context.store.one("intake")
    return Intake(*row) if row else Intake(paused=False)


async def run(
    context: OperatorContext, stop: asyncio.Event, tell: Callable[[str | None], None], *, every: float = EVERY
) -> None:
    """Every service runs it: `tell` gets the note while the intake is paused, and None when it is not.

    While Postgres is unavailable, the last known state applies.
    """
    last: str | None = None
    while not stop.is_set():
        with suppress(AuditError):
            note = (await read_intake(context)).note
            if note != last:
                log.info("intake", paused=note is not None, why=note)
            last = note
        tell(last)
        await sleep_unless(stop, every)


async def end_expired_intake(context: OperatorContext) -> None:
    """Records the end of a pause that has expired; the routers follow its end even before that."""
    row = await context.store.one("expired_intake")
    if row is None:
        return
    why = f"{row[0]}'s pause expired"
    async with recorded(
        context.store, kind="resume_intake", target="intake", actor=context.actor, detail={"why": why}
    ) as action:
        await context.store.change("end_intake_pause", actor=context.actor, reason=why)
        action.outcome = asdict(await read_intake(context))


async def _set(
    context: OperatorContext, actor: str, reason: str | None, *, paused: bool, lasts: timedelta | None = None
) -> Intake:
    kind, detail = "pause_intake" if paused else "resume_intake", {"reason": reason}
    if lasts is not None:
        detail |= {"lasts_s": str(lasts.total_seconds())}
    async with recorded(context.store, kind=kind, target="intake", actor=actor, detail=detail) as action:
        await context.store.change("set_intake", paused=paused, actor=actor, reason=reason, lasts=lasts)
        found = await read_intake(context)
        action.outcome = asdict(found)
    return found

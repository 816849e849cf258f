"""Pausing the intake: the routers take no requests, which wait in their queue; what already waits in tiers returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime

import structlog

from tarry.control.actions import recorded
from tarry.control.beside import sleep_unless
from tarry.control.desk import Desk
from tarry.errors import AuditError

log = structlog.get_logger()

EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Intake:
    """Whether requests are taken, and who said so."""

    paused: bool
    actor: str | None = None
    reason: str | None = None
    at: datetime | None = None

    @property
    def note(self) -> str | None:
        """For health and status: why nothing moves."""
        if not self.paused:
            return None
        why = f": {self.reason}" if self.reason else ""
        return f"the intake was paused by {self.actor} at {self.at:%Y-%m-%d %H:%M:%S %Z}{why}"


async def pause_intake(desk: Desk, *, actor: str, reason: str | None = None) -> Intake:
    return await _set(desk, actor, reason, paused=True)


async def resume_intake(desk: Desk, *, actor: str, reason: str | None = None) -> Intake:
    return await _set(desk, actor, reason, paused=False)


async def read_intake(desk: Desk) -> Intake:
    row = await desk.books.one("intake")
    return Intake(*row) if row else Intake(paused=False)


async def run(desk: Desk, stop: asyncio.Event, tell: Callable[[str | None], None], *, every: float = EVERY) -> None:
    """Every service runs it: `tell` gets the note while the intake is paused, and None when it is not.

    While Postgres is away the last word counts.
    """
    last: str | None = None
    while not stop.is_set():
        with suppress(AuditError):
            note = (await read_intake(desk)).note
            if note != last:
                log.info("intake", paused=note is not None, why=note)
            last = note
        tell(last)
        await sleep_unless(stop, every)


async def _set(desk: Desk, actor: str, reason: str | None, *, paused: bool) -> Intake:
    kind = "pause_intake" if paused else "resume_intake"
    async with recorded(desk.books, kind=kind, target="intake", actor=actor, detail={"reason": reason}) as action:
        await desk.books.change("set_intake", paused=paused, actor=actor, reason=reason)
        found = await read_intake(desk)
        action.outcome = asdict(found)
    return found

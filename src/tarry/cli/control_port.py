"""What the commands on retries and destinations need done, by whom they do not care: at this desk, or by a service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeVar

from pydantic import TypeAdapter

from tarry.cli.remote import Remote, segment
from tarry.control import cancel as acts
from tarry.control import holds, intake
from tarry.control.cancel import Diverted
from tarry.control.desk import Desk
from tarry.control.held import Holds, known_destinations, show_holds
from tarry.control.holds import Paused, Resumed
from tarry.control.intake import Intake
from tarry.control.lookup import Done, latest_actions
from tarry.core.durations import format_duration

T = TypeVar("T")
Verb = Literal["cancel", "retry-now"]


class Hands(Protocol):
    """All that can be done to retries and destinations."""

    async def divert(self, verb: Verb, called: str, reason: str | None) -> Diverted: ...
    async def destinations(self, pattern: str) -> list[str]: ...
    async def pause(self, pattern: str, reason: str | None, lasts: timedelta | None) -> Paused: ...
    async def resume(self, pattern: str, rate: int, *, canary: bool, look: timedelta) -> Resumed: ...
    async def holds(self) -> Holds: ...
    async def set_intake(self, reason: str | None, *, paused: bool) -> Intake: ...
    async def actions(self, actor: str | None, kind: str | None, target: str | None, *, limit: int) -> list[Done]: ...


@dataclass(frozen=True, slots=True)
class AtThisDesk:
    """Straight on broker and Postgres."""

    desk: Desk

    async def divert(self, verb: Verb, called: str, reason: str | None) -> Diverted:
        act = acts.cancel if verb == "cancel" else acts.retry_now
        return await act(self.desk, called, actor=self.desk.actor, reason=reason)

    async def destinations(self, pattern: str) -> list[str]:
        return await known_destinations(self.desk, pattern)

    async def pause(self, pattern: str, reason: str | None, lasts: timedelta | None) -> Paused:
        return await holds.pause(self.desk, pattern, actor=self.desk.actor, reason=reason, lasts=lasts)

    async def resume(self, pattern: str, rate: int, *, canary: bool, look: timedelta) -> Resumed:
        return await holds.resume(self.desk, pattern, actor=self.desk.actor, rate=rate, canary=canary, look=look)

    async def holds(self) -> Holds:
        return await show_holds(self.desk)

    async def set_intake(self, reason: str | None, *, paused: bool) -> Intake:
        act = intake.pause_intake if paused else intake.resume_intake
        return await act(self.desk, actor=self.desk.actor, reason=reason)

    async def actions(self, actor: str | None, kind: str | None, target: str | None, *, limit: int) -> list[Done]:
        return await latest_actions(self.desk.books, actor=actor, kind=kind, target=target, limit=limit)


@dataclass(frozen=True, slots=True)
class ThroughTheApi:
    """By a service far away."""

    remote: Remote

    async def divert(self, verb: Verb, called: str, reason: str | None) -> Diverted:
        return await self._act(Diverted, f"/retries/{segment(called)}/{verb}", reason=reason)

    async def destinations(self, pattern: str) -> list[str]:
        found = await asyncio.to_thread(self.remote.get, "/queues", {"match": pattern})
        return [one["name"] for one in found["items"]]

    async def pause(self, pattern: str, reason: str | None, lasts: timedelta | None) -> Paused:
        return await self._act(Paused, f"/queues/{segment(pattern)}/pause", reason=reason, lasts=_text(lasts))

    async def resume(self, pattern: str, rate: int, *, canary: bool, look: timedelta) -> Resumed:
        path = f"/queues/{segment(pattern)}/resume"
        return await self._act(Resumed, path, rate=rate, canary=canary, look=_text(look))

    async def holds(self) -> Holds:
        return _read(Holds, await asyncio.to_thread(self.remote.get, "/holds"))

    async def set_intake(self, reason: str | None, *, paused: bool) -> Intake:
        return await self._act(Intake, f"/intake/{'pause' if paused else 'resume'}", reason=reason)

    async def actions(self, actor: str | None, kind: str | None, target: str | None, *, limit: int) -> list[Done]:
        wanted = {"actor": actor, "kind": kind, "target": target, "limit": limit}
        found = await asyncio.to_thread(self.remote.get, "/actions", wanted)
        return _read(list[Done], found["items"])

    async def _act(self, kind: type[T], path: str, **body: object) -> T:
        return _read(kind, await asyncio.to_thread(self.remote.act, path, body))


def _read(kind: type[T], data: Any) -> T:
    return TypeAdapter(kind).validate_python(data)


def _text(lasts: timedelta | None) -> str | None:
    return None if lasts is None else format_duration(round(lasts.total_seconds() * 1000))

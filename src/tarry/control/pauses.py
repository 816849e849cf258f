"""Pauses: what somebody wants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tarry.control.desk import Desk
from tarry.control.destinations import matching


@dataclass(frozen=True, slots=True)
class Pause:
    """No returns to what matches the pattern, for good or until."""

    id: str
    pattern: str
    actor: str
    reason: str | None
    at: datetime
    until: datetime | None
    is_over: bool
    """By Postgres's clock."""
    exceptions: list[str]
    """Destinations that were resumed by themselves."""

    def wants(self, label: str) -> bool:
        """Whether this destination is to be held."""
        return bool(matching(self.pattern, [label])) and label not in self.exceptions


async def active_pauses(desk: Desk) -> list[Pause]:
    return [Pause(*row) for row in await desk.books.rows("active_pauses")]

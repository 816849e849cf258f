"""Writing what must be written: waits while Postgres is away, and finds the one row that it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tarry.contract.request import Delivery
from tarry.errors import AuditError, AuditUnavailableError

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds between tries while Postgres is away."""


@dataclass(slots=True)
class Insistence:
    """Rows into the store, each with the delivery it came by."""

    trouble: AuditUnavailableError | None = None
    """Why nothing can be written now, or None."""

    async def write(
        self, write: Callable[[Sequence[T]], Awaitable[None]], rows: Sequence[tuple[Delivery, T]]
    ) -> list[tuple[Delivery, str]]:
        """What Postgres refuses is found by halving, and comes back with the reason."""
        if not rows:
            return []
        try:
            await self._insist(write, [row for _, row in rows])
        except AuditError as error:
            if len(rows) == 1:
                return [(rows[0][0], str(error))]
            middle = len(rows) // 2
            return await self.write(write, rows[:middle]) + await self.write(write, rows[middle:])
        return []

    async def _insist(self, write: Callable[[Sequence[T]], Awaitable[None]], rows: Sequence[T]) -> None:
        while True:
            try:
                await write(rows)
            except AuditUnavailableError as error:
                self.trouble = error
                await asyncio.sleep(PATIENCE)
            else:
                self.trouble = None
                return

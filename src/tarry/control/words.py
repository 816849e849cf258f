"""The taps' word: did the message return, or was it diverted? Many may wait for it; they are asked for together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from tarry.control.books import Books
from tarry.errors import AuditError

Word = Literal["diverted", "returned"]

ASK_EVERY = 0.1
"""Seconds between two looks at the books."""


@dataclass(slots=True)
class Words:
    """One loop for all who wait, as long as anybody does."""

    books: Books
    _waiting: dict[str, asyncio.Future[Word]] = field(default_factory=dict)
    _asking: asyncio.Task[None] | None = None

    async def of(self, diversion: str, patience: float) -> Word | None:
        """None if there is no word within so many seconds."""
        waiting: asyncio.Future[Word] = asyncio.get_running_loop().create_future()
        self._waiting[diversion] = waiting
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            async with asyncio.timeout(patience):
                return await waiting
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(diversion, None)

    async def _ask(self) -> None:
        while self._waiting:
            for diversion, word in await self._look():
                waiting = self._waiting.get(diversion)
                if word is not None and waiting is not None and not waiting.done():
                    waiting.set_result(word)
            await asyncio.sleep(ASK_EVERY)

    async def _look(self) -> list[tuple[str, Word | None]]:
        """While Postgres is away there is no word; whoever waits has a deadline of their own."""
        try:
            rows = await self.books.rows("words", ids=list(self._waiting))
        except AuditError:
            return []
        return [(row[0], row[1]) for row in rows]

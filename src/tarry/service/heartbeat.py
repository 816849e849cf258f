"""The heartbeat: a router reports to the store that it runs, what it does, and what is wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from tarry import __version__
from tarry.errors import AuditError
from tarry.store.database import PostgresPool
from tarry.tasks import now_and_then

EVERY = 5.0
"""Seconds between two reports: a quarter of the time after which a router counts as silent."""


@dataclass(slots=True)
class Heartbeat:
    """Reports of one router. Without Postgres there are none, and the router works on."""

    store: PostgresPool
    router: str
    """The actor that the router writes to the history."""
    clock: Callable[[], float] = time.monotonic
    handled: int = 0
    """Requests that the router has handled."""
    _started_at: float = field(init=False)
    _reported: tuple[float, int] = field(init=False)
    """When the last report was made, and the requests handled until then."""

    def __post_init__(self) -> None:
        self._started_at = self.clock()
        self._reported = self._started_at, 0

    async def run(self, troubles: Callable[[], list[str]], stop: asyncio.Event) -> None:
        """Reports until `stop` is set, and then removes the router from the list."""
        await now_and_then("heartbeat", lambda: self.report(troubles()), stop, EVERY)
        with suppress(AuditError):
            await self.store.change("remove_router", id=self.router)

    async def report(self, troubles: list[str]) -> None:
        now, handled = self.clock(), self.handled
        before, handled_before = self._reported
        await self.store.change(
            "report_router",
            id=self.router,
            host=socket.gethostname(),
            process=os.getpid(),
            version=__version__,
            running_for=timedelta(seconds=now - self._started_at),
            rate=(handled - handled_before) / max(now - before, 1.0),
            troubles=troubles,
        )
        self._reported = now, handled

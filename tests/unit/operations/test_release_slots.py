"""How many releases take messages at the same time: each has a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tarry.core.names import Names
from tarry.operations.context import OperatorContext
from tarry.operations.held_queue import HeldQueue
from tarry.operations.pause_reconciler import PauseReconciler
from tarry.operations.paused_destination import PausedDestination
from tarry.operations.release import AT_ONCE, Release

MOMENT = datetime.now(UTC)
PAUSED = PausedDestination(
    *("", "queue", "", "releasing", MOMENT, MOMENT, None, 500, False, timedelta(), 0),
    *(None, None, None, 0, None, None, None),
)


class Context:
    """As much of it as a release needs to take messages."""

    names = Names()


def releasing(number: int, **changes: Any) -> list[PausedDestination]:
    return [replace(PAUSED, label=f"queue{place}", **changes) for place in range(number)]


class Connections:
    """Counts held queues that are open, and keeps them open until told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open_now = self.opened = 0
        self.may_close, self.changed = asyncio.Event(), asyncio.Event()

        async def yes(*_: object) -> bool:
            return True

        async def drain(*_: object) -> bool:
            await self.may_close.wait()
            return False

        monkeypatch.setattr(HeldQueue, "open", self.open)
        monkeypatch.setattr(Release, "_open_recheck", yes)
        monkeypatch.setattr(Release, "_drain", drain)

    @asynccontextmanager
    async def open(self, *_: object) -> AsyncIterator[None]:
        self.open_now += 1
        self.opened += 1
        self.changed.set()
        try:
            yield
        finally:
            self.open_now -= 1

    async def wait_opened(self, number: int) -> None:
        async with asyncio.timeout(30):
            while self.opened < number:
                self.changed.clear()
                await self.changed.wait()


def test_releases_take_turns_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        connections, context = Connections(monkeypatch), cast("OperatorContext", Context())
        reconciler = PauseReconciler(context)
        reconciler._release(releasing(AT_ONCE + 50))
        await connections.wait_opened(AT_ONCE)
        await asyncio.sleep(0)
        assert connections.open_now == AT_ONCE
        connections.may_close.set()
        await connections.wait_opened(AT_ONCE + 50)
        await reconciler.end_releases()

    asyncio.run(run())


def test_pause_reconciler_forgets_releases_that_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> PauseReconciler:
        connections, context = Connections(monkeypatch), cast("OperatorContext", Context())
        connections.may_close.set()
        reconciler = PauseReconciler(context)
        reconciler._release(releasing(20))
        await asyncio.gather(*reconciler._releases.values())
        reconciler._release([])
        return reconciler

    reconciler = asyncio.run(run())
    assert (reconciler._releases, reconciler._running) == ({}, {})

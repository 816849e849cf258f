"""When a throttle takes its held queue for empty: what it held is then expected back, and can become overdue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tarry.amqp.delivery import Delivery
from tarry.operations import release
from tarry.operations.context import OperatorContext
from tarry.operations.held_queue import HeldQueue
from tarry.operations.paused_destination import PausedDestination
from tarry.operations.release import Release

STEPS = 10
LATE = 0.05


class Slow:
    """A held queue that delivers nothing in time; and the store and the broker of its release."""

    def __init__(self, ready: int) -> None:
        self.ready = ready
        self.changes: list[str] = []
        self.looks = 0
        self.throttle, self.state_since, self.canary, self.label = 5, None, False, "orders"
        self.store, self.binder, self.actor, self.names = self, self, "watcher", self

    async def change(self, name: str, **_: Any) -> None:
        self.changes.append(name)

    async def one(self, _name: str, **_: Any) -> tuple[Any, ...]:
        self.looks += 1
        return ("releasing" if self.looks < STEPS else "holding", 500, False, None, 5)

    async def depth(self, _queue: str) -> int:
        return self.ready

    async def take(self, _most: int, patience: float) -> Sequence[Delivery]:
        await asyncio.sleep(patience)
        return []

    async def release(self, *_: object, **__: object) -> None: ...


@pytest.mark.parametrize(("ready", "times"), [(100, 0), (0, 1)])
def test_throttle_asks_the_broker_whether_the_held_queue_is_empty(
    ready: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "LOOK_EVERY", LATE)
    fake = Slow(ready)
    work = Release(cast("OperatorContext", fake), cast("PausedDestination", fake))
    asyncio.run(work._throttle(cast("HeldQueue", fake), "retry.held.orders"))
    assert fake.changes.count("throttle_caught_up") == times

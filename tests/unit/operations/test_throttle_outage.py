"""A throttle releases at its last rate while Postgres does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.core.names import Destination
from tarry.errors import AuditUnavailableError
from tarry.operations import release
from tarry.operations.context import OperatorContext
from tarry.operations.held_queue import HeldQueue
from tarry.operations.paused_destination import PausedDestination
from tarry.operations.release import Release

OUTAGE = range(2, 5)
"""The looks that Postgres does not answer."""


class Backlog:
    """A held queue with a backlog; and the store and the broker of its release."""

    def __init__(self, consumers: int = 1) -> None:
        self.looks, self.consumers = 0, consumers
        self.released_at: list[int] = []
        self.throttle, self.state_since, self.canary, self.label = 5, None, False, "orders"
        self.store, self.binder, self.actor, self.names = self, self, "watcher", self
        self.holder = Destination("queue", "orders")

    async def change(self, _name: str, **_: Any) -> None: ...

    async def one(self, _name: str, **_: Any) -> tuple[Any, ...]:
        self.looks += 1
        if self.looks in OUTAGE:
            raise AuditUnavailableError("gone")
        return ("releasing" if self.looks < OUTAGE.stop else "holding", 500, False, None, 5)

    def held_queue(self, holder: Destination) -> str:
        return f"retry.held.{holder.name}"

    async def counts(self, queue: str) -> tuple[int, int]:
        assert queue == "retry.held.orders"
        return 7, self.consumers

    async def take(self, _most: int, patience: float) -> Sequence[Delivery]:
        await asyncio.sleep(min(patience, 0.01))
        return [Delivery(b"", Properties(), "", "")]

    async def release(self, *_: object, **__: object) -> None:
        self.released_at.append(self.looks)


def test_throttle_goes_on_without_postgres_and_ends_by_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(release, "LOOK_LESS", 0.05, raising=False)
    monkeypatch.setattr(release, "is_held_on_broker", _says(False))
    fake = Backlog()
    work = Release(cast("OperatorContext", fake), cast("PausedDestination", fake))
    asyncio.run(work._throttle(cast("HeldQueue", fake), "retry.held.orders"))
    assert set(OUTAGE) <= set(fake.released_at)
    assert fake.looks == OUTAGE.stop


def test_throttle_that_another_service_has_paused_ends_without_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it rejects would return: the held queue of a destination does not lead back to itself."""
    monkeypatch.setattr(release, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(release, "is_held_on_broker", _says(True))
    fake = Backlog()
    work = Release(cast("OperatorContext", fake), cast("PausedDestination", fake))
    asyncio.run(work._throttle(cast("HeldQueue", fake), "retry.held.orders"))
    assert fake.looks == OUTAGE.start, "it ends at the first look that Postgres does not answer"


def test_throttle_that_another_service_has_taken_over_ends_without_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this one has lost Postgres. Together they would be twice as fast as the throttle allows."""
    monkeypatch.setattr(release, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(release, "is_held_on_broker", _says(False))
    fake = Backlog(consumers=2)
    work = Release(cast("OperatorContext", fake), cast("PausedDestination", fake))
    asyncio.run(work._throttle(cast("HeldQueue", fake), "retry.held.orders"))
    assert fake.looks == OUTAGE.start


def _says(answer: bool) -> Callable[..., Awaitable[bool]]:  # noqa: FBT001 - what the broker says
    async def held(_context: object, _holder: object) -> bool:
        return answer

    return held

"""How fast a job works: at a rate, or in batches of 1, 10, 100 and so on, each watched before the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from tarry.core.durations import humanise
from tarry.errors import AuditError
from tarry.operations.canary import TOLERATED
from tarry.operations.context import OperatorContext
from tarry.operations.review.jobs import Job, watch_of
from tarry.tasks import sleep_unless

log = structlog.get_logger()

PAUSE = 1.0
"""Seconds between two heartbeats of a worker."""

TICKS = 5
"""Batches a second, at rates high enough to batch."""

GROWTH = 10


@dataclass(slots=True)
class Pacer:
    """Keeps a steady rate in small batches, without catching up after a delay. Pure except for its clock."""

    rate: float | None
    clock: Callable[[], float]
    _next: float | None = None

    def batch(self, most: int) -> int:
        """The number of messages in a batch."""
        return most if self.rate is None else max(1, min(most, int(self.rate / TICKS)))

    def wait(self, count: int) -> float:
        """Seconds until a batch of `count` messages may be sent."""
        if self.rate is None:
            return 0.0
        now = self.clock()
        at = now if self._next is None else max(self._next, now)
        self._next = at + count / self.rate
        return at - now


@dataclass(slots=True)
class Pace:
    """The pace of one run of a job. Batches begin with one message again when the job is resumed."""

    context: OperatorContext
    job: Job
    stop: asyncio.Event
    """Set by the caller."""
    halted: asyncio.Event = field(default_factory=asyncio.Event)
    problem: str | None = None
    """Why the job stopped itself."""
    _size: int = 1
    _pacer: Pacer = field(init=False)

    def __post_init__(self) -> None:
        self._pacer = Pacer(self.job.rate, time.monotonic)

    def most(self, most: int) -> int:
        """The most messages until the next call of `next_batch`."""
        return most if watch_of(self.job) is None else min(most, self._size)

    def batch(self, most: int) -> int:
        return self._pacer.batch(most)

    async def wait(self, count: int) -> None:
        await sleep_unless(self.halted, self._pacer.wait(count))

    async def next_batch(self) -> None:
        """If the batches grow: watches what the last one came to, then allows a larger one or stops the job."""
        watch = watch_of(self.job)
        if watch is None or await sleep_unless(self.halted, watch.total_seconds()):
            return
        total, failed = await self.context.store.one("review_failures", job=self.job.id) or (0, 0)
        if failed <= total * TOLERATED:
            self._size *= GROWTH
            return
        span = humanise(round(watch.total_seconds() * 1000))
        self.problem = f"stopped by itself: {failed:,} of {total:,} failed within {span}. Resumed, it begins with one"
        log.warning("job stopped itself", job=self.job.id, failed=failed, of=total)
        await self.context.store.rows("review_want", job=self.job.id, wanted="stop", here=False)
        self.halted.set()

    async def beat(self) -> None:
        """Records that the worker is alive, and halts it if the job is to stop."""
        while not self.halted.is_set():
            with suppress(AuditError):
                row = await self.context.store.one("review_seen", job=self.job.id)
                if row is None or not row[0]:
                    self.halted.set()
            if await sleep_unless(self.stop, PAUSE):
                self.halted.set()

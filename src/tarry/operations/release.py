"""The release of one paused destination, policy or job type: canaries if requested, then the rest at its rate.

A message that another pause applies to does not return: it goes from this held queue to the other one. Once the held
queue is empty the binding is removed, and messages that arrived meanwhile are released too. The release of a throttled
destination never ends: the binding stays, and every return passes the held queue. The paused destination's row stores
all state that is needed to continue, so that another process can do so.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from tarry.core.names import Holder
from tarry.errors import AuditUnavailableError
from tarry.operations.canary import canaries_of
from tarry.operations.canary_stage import CanaryStage
from tarry.operations.context import OperatorContext
from tarry.operations.held_queue import EMPTY, HeldQueue
from tarry.operations.paused_destination import (
    RELEASE_RATE,
    SEEN_WITHIN,
    PausedDestination,
    assert_pause,
    assert_throttle,
    is_held_on_broker,
    unbind_recheck,
)
from tarry.store.database import Row

log = structlog.get_logger()

AT_ONCE = 100
"""Releases that take messages out of their held queues at the same time, each on a connection of its own. Others wait
for their turn: a pause of all destinations may have held thousands. Throttles are not counted, since they never end."""

PREFETCH = 1_000

LEAST_PREFETCH = 50
"""Of the release of a breaker, whose rate doubles."""

EMPTY_EVERY = 5.0
"""Seconds between two records that the held queue of a throttled destination is empty."""

LOOK_EVERY = 0.5
"""Seconds between two checks of whether a throttle is still wanted, and at which rate."""

LOOK_LESS = 15.0
"""The same while Postgres does not answer: each check then takes seconds in which nothing is released."""


@dataclass(slots=True)
class Release:
    """A release; only one process works on it at a time."""

    context: OperatorContext
    paused: PausedDestination
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    """Of all releases of this process that end."""
    released: int = 0
    is_endless: bool = False
    """Whether it is a throttle that releases what comes, and goes on without Postgres."""
    _recorded: int = 0
    _rate: int = 1
    _known: bool = True
    """Whether Postgres has answered at the last look."""

    @property
    def label(self) -> str:
        return self.paused.label

    @property
    def is_throttled(self) -> bool:
        return self.paused.throttle is not None

    async def run(self) -> None:
        """Runs until nothing is left, the destination is paused or resumed again, or a canary has failed."""
        holder, self._rate = self.paused.holder, self.paused.effective_rate
        queue = self.context.names.held_queue(holder)
        if not await (assert_throttle(self.context, holder) if self.is_throttled else self._open_recheck()):
            return
        if self.paused.canary and not await self._canaries():
            await assert_pause(self.context, holder)  # if a canary failed
            return
        if self.is_throttled:
            async with HeldQueue.open(self.context, queue, self._prefetch) as held_queue:
                await self._throttle(held_queue, queue)
            return
        async with self.slots, HeldQueue.open(self.context, queue, self._prefetch) as held_queue:
            if not await self._drain(held_queue, queue):
                return
            if not await self._unbind(holder, queue):
                return
            if await self._drain(held_queue, queue):
                row = await self.context.store.one("release_over", destination=self.label)
                log.info("release finished", destination=self.label, released=row[0] if row else None)

    async def _canaries(self) -> bool:
        """Whether all canaries passed. After a restart the current canary is watched further, not sent again."""
        sizes, number = canaries_of(self.paused), self.paused.stage
        stage = CanaryStage.of(self.context, self.paused, self._goes_on)
        is_sent = bool(stage.members)
        while number < len(sizes):
            if not is_sent and not await self._send(stage, sizes[number]):
                return await self._goes_on()
            if not await stage.passes():
                return False
            is_sent, number = False, number if stage.is_void else number + 1
            await self.context.store.change("next_stage", destination=self.label, stage=number)
        return True

    async def _send(self, stage: CanaryStage, size: int) -> bool:
        """Whether a canary was released. A breaker waits for a message: it does not close without evidence."""
        if not self.paused.by_breaker:
            async with self.slots:
                return await stage.send(size)
        queue = self.context.names.held_queue(self.paused.holder)
        while await self._goes_on():
            if await self.context.binder.depth(queue):
                async with self.slots:
                    if await stage.send(size):
                        return True
            await asyncio.sleep(LOOK_EVERY)
        return False

    @property
    def _prefetch(self) -> int:
        least = LEAST_PREFETCH if self.paused.by_breaker else 1
        return max(least, min(PREFETCH, self._rate * 2))

    async def _drain(self, held_queue: HeldQueue, queue: str) -> bool:
        """Releases until the queue is empty; False if the release is no longer wanted."""
        while await self._goes_on():
            taken = await held_queue.take(self._rate, EMPTY)
            await held_queue.release(taken, self._rate)
            self.released += len(taken)
            if not taken and not await self.context.binder.depth(queue):
                return True
        return False

    async def _throttle(self, held_queue: HeldQueue, queue: str) -> None:
        """Releases what comes, at the rate, until the destination is paused or no longer throttled."""
        self.is_endless = True
        clock, empty_at = asyncio.get_running_loop().time, float("-inf")
        while await self._goes_on_throttled():
            until = clock() + (LOOK_EVERY if self._known else LOOK_LESS)
            while (left := until - clock()) > 0:
                taken = await held_queue.take(max(1, int(self._rate * left)), left)
                await held_queue.release(taken, self._rate, catch_up=0)
                self.released += len(taken)
                if taken or not self._known or clock() - empty_at <= EMPTY_EVERY:
                    continue
                # There may have been no time for a message to arrive: the broker knows whether there are any.
                if not await self.context.binder.depth(queue):
                    empty_at = clock()
                    with suppress(AuditUnavailableError):
                        await self._caught_up()

    async def _goes_on_throttled(self) -> bool:
        """Without Postgres it goes on at its last rate, as other returns do. Not if the broker says that it is paused,
        or that another service, which may reach Postgres, releases it too: together they would exceed the rate.
        """
        try:
            wanted = await self._goes_on()
        except AuditUnavailableError:
            self._known = False
            _, consumers = await self.context.binder.counts(self.context.names.held_queue(self.paused.holder))
            return consumers <= 1 and not await is_held_on_broker(self.context, self.paused.holder)
        self._known = True
        return wanted

    async def _caught_up(self) -> None:
        about = {"destination": self.label, "rate": RELEASE_RATE, "seen_within": SEEN_WITHIN}
        await self.context.store.change("throttle_caught_up", **about, actor=self.context.actor)

    async def _goes_on(self) -> bool:
        """Whether the release is still wanted. Also stores its progress for operators, and reads its current rate."""
        released = self.released
        if released > self._recorded:
            await self.context.store.change("count_released", destination=self.label, more=released - self._recorded)
            self._recorded = released
        row = await self.context.store.one("paused_now", destination=self.label)
        if row is None or not self._is_wanted(row):
            return False
        rate, throttle = row[1] or 1, row[4]
        self._rate = rate if throttle is None else min(rate, throttle)
        return True

    def _is_wanted(self, row: Row) -> bool:
        """Only the rate may change during a release. A resume that adds or drops the canary starts a new release, as
        does a throttle that begins or ends.
        """
        state, _, canary, since, throttle = row
        same = since == self.paused.state_since or not (canary or self.paused.canary)
        return state == "releasing" and same and (throttle is not None) == self.is_throttled

    async def _open_recheck(self) -> bool:
        """Under a lock as below; False if the release is no longer wanted."""
        async with self.context.store.transaction() as page:
            row = await page.one("lock_paused", destination=self.label)
            if row is None or not self._is_wanted(row):
                return False
            await unbind_recheck(self.context, self.paused.holder)
        return True

    async def _unbind(self, holder: Holder, queue: str) -> bool:
        """Locks the row, so that the destination cannot be paused again between the check and the unbinding."""
        async with self.context.store.transaction() as page:
            row = await page.one("lock_paused", destination=self.label)
            if row is None or not self._is_wanted(row):
                return False
            await self.context.unbind(queue, self.context.names.holding_exchange(holder), holder.key)
            await page.change("paused_unbound", destination=self.label)
        return True

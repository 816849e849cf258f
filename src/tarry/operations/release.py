"""The release of one paused destination, policy or job type: canaries if requested, then the rest at its rate.

A message that another pause applies to does not return: it goes from this held queue to the other one. Once the held
queue is empty the binding is removed, and messages that arrived meanwhile are released too. The paused destination's
row stores all state that is needed to continue, so that another process can do so.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from tarry.core.names import Holder
from tarry.operations.canary import CANARIES
from tarry.operations.canary_stage import CanaryStage
from tarry.operations.context import OperatorContext
from tarry.operations.held_queue import EMPTY, HeldQueue
from tarry.operations.paused_destination import PausedDestination, assert_pause, unbind_recheck
from tarry.store.database import Row

log = structlog.get_logger()

PREFETCH = 1_000


@dataclass(slots=True)
class Release:
    """A release; only one process works on it at a time."""

    context: OperatorContext
    paused: PausedDestination
    released: int = 0
    _recorded: int = 0
    _rate: int = 1

    @property
    def label(self) -> str:
        return self.paused.label

    async def run(self) -> None:
        """Runs until nothing is left, the destination is paused or resumed again, or a canary has failed."""
        holder, self._rate = self.paused.holder, self.paused.rate or 1
        queue = self.context.names.held_queue(holder)
        if not await self._open_recheck():
            return
        if self.paused.canary and not await self._canaries():
            await assert_pause(self.context, holder)  # if a canary failed
            return
        async with HeldQueue.open(self.context, queue, max(1, min(PREFETCH, self._rate * 2))) as held_queue:
            if not await self._drain(held_queue, queue):
                return
            if not await self._unbind(holder, queue):
                return
            if await self._drain(held_queue, queue):
                row = await self.context.store.one("release_over", destination=self.label)
                log.info("release finished", destination=self.label, released=row[0] if row else None)

    async def _canaries(self) -> bool:
        """Whether all canaries passed. After a restart the current canary is watched further, not sent again."""
        for number in range(self.paused.stage, len(CANARIES)):
            stage = CanaryStage.of(self.context, self.paused, self._goes_on)
            if number > self.paused.stage or not stage.members:
                stage.members = []
                if not await stage.send(CANARIES[number]):
                    return await self._goes_on()
            if not await stage.passes():
                return False
            await self.context.store.change("next_stage", destination=self.label, stage=number + 1)
        return True

    async def _drain(self, held_queue: HeldQueue, queue: str) -> bool:
        """Releases until the queue is empty; False if the release is no longer wanted."""
        while await self._goes_on():
            taken = await held_queue.take(self._rate, EMPTY)
            await held_queue.release(taken, self._rate)
            self.released += len(taken)
            if not taken and not await self.context.binder.depth(queue):
                return True
        return False

    async def _goes_on(self) -> bool:
        """Whether the release is still wanted. Also stores its progress for operators, and reads its current rate."""
        more, self._recorded = self.released - self._recorded, self.released
        if more:
            await self.context.store.change("count_released", destination=self.label, more=more)
        row = await self.context.store.one("paused_now", destination=self.label)
        if row is None or not self._is_wanted(row):
            return False
        self._rate = row[1] or 1
        return True

    def _is_wanted(self, row: Row) -> bool:
        """Only the rate may change during a release. A resume that adds or drops the canary starts a new release."""
        state, _, canary, since = row
        return state == "releasing" and (since == self.paused.state_since or not (canary or self.paused.canary))

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

"""The release of one hold: first a canary, then the rest at its rate, then the binding goes and what is left follows.

Everything that decides how to go on is in the hold's row, so that another process can.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from tarry.control.books import Row
from tarry.control.canary import CANARIES
from tarry.control.canary_stage import CanaryStage
from tarry.control.desk import Desk
from tarry.control.hold import Hold
from tarry.control.outflow import EMPTY, Outflow
from tarry.core.names import Destination

log = structlog.get_logger()

PREFETCH = 1_000


@dataclass(slots=True)
class Release:
    """One process has it at a time."""

    desk: Desk
    hold: Hold
    released: int = 0
    _told: int = 0
    _rate: int = 1

    @property
    def label(self) -> str:
        return self.hold.label

    async def run(self) -> None:
        """Until nothing is left, or somebody pauses or resumes it again, or its canary failed."""
        destination, self._rate = self.hold.destination, self.hold.rate or 1
        queue = self.desk.names.held_queue(destination)
        if self.hold.canary and not await self._canaries():
            return
        async with Outflow.open(self.desk, queue, max(1, min(PREFETCH, self._rate * 2))) as outflow:
            if not await self._drain(outflow, queue):
                return
            if not await self._unbind(destination, queue):
                return
            if await self._drain(outflow, queue):
                row = await self.desk.books.one("hold_over", destination=self.label)
                log.info("a release is over", destination=self.label, released=row[0] if row else None)

    async def _canaries(self) -> bool:
        """Whether all of them passed. After a restart the one under way is watched on, not sent again."""
        for number in range(self.hold.stage, len(CANARIES)):
            stage = CanaryStage.of(self.desk, self.hold, self._goes_on)
            if number > self.hold.stage or not stage.members:
                stage.members = []
                if not await stage.send(CANARIES[number]):
                    return await self._goes_on()
            if not await stage.passes():
                return False
            await self.desk.books.change("next_stage", destination=self.label, stage=number + 1)
        return True

    async def _drain(self, outflow: Outflow, queue: str) -> bool:
        """Whether the queue is empty; False if it is no longer to be released."""
        while await self._goes_on():
            taken = await outflow.take(self._rate, EMPTY)
            await outflow.let_go(taken, self._rate)
            self.released += len(taken)
            if not taken and not await self.desk.binder.depth(queue):
                return True
        return False

    async def _goes_on(self) -> bool:
        """Whether it is still to be released, and how fast; and how far it is, for people to see."""
        more, self._told = self.released - self._told, self.released
        if more:
            await self.desk.books.change("let_go", destination=self.label, more=more)
        row = await self.desk.books.one("hold_now", destination=self.label)
        if row is None or not self._is_wanted(row):
            return False
        self._rate = row[1] or 1
        return True

    def _is_wanted(self, row: Row) -> bool:
        """Only the rate may change on the way. A resume that asks for a canary, or for none any more, begins anew."""
        state, _, canary, since = row
        return state == "releasing" and (since == self.hold.state_since or not (canary or self.hold.canary))

    async def _unbind(self, destination: Destination, queue: str) -> bool:
        """Nobody can pause it again between the look and the unbinding: the row is locked meanwhile."""
        async with self.desk.books.transaction() as page:
            row = await page.one("lock_hold", destination=self.label)
            if row is None or not self._is_wanted(row):
                return False
            await self.desk.unbind(queue, self.desk.names.held_gate, destination.key)
            await page.change("hold_unbound", destination=self.label)
        return True

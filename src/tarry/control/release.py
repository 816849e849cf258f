"""The release of one hold: first a canary, then the rest at its rate, then the binding goes and what is left follows.

Everything that decides how to go on is in the hold's row, so that another process can.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from tarry.contract import headers as h
from tarry.contract.fields import BadTableError, walk
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.contract.request import Delivery
from tarry.control.desk import Desk
from tarry.control.hold import Hold
from tarry.control.outflow import Outflow
from tarry.core.names import Destination

log = structlog.get_logger()

CANARIES = (1, 10, 100)
"""How many are let go at first, each time with a look at what becomes of them."""

TOLERATED = 0.1
"""Of a canary so many may fail again: with more the rest stays."""

LOOK_EVERY = 0.5
UNSEEN = 30.0
"""Seconds after which a canary that was not seen to return is taken for one that was never let go."""

EMPTY = 1.0
"""Seconds without a message after which a held queue may be empty."""


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
        """Until nothing is left, or somebody pauses it again, or its canary failed."""
        destination, self._rate = self.hold.destination, self.hold.rate or 1
        queue = self.desk.names.held_queue(destination)
        async with Outflow.open(self.desk, queue, self._rate) as outflow:
            if self.hold.canary and not await self._canaries(outflow):
                return
            if not await self._drain(outflow, queue):
                return
            if not await self._unbind(destination, queue):
                return
            if await self._drain(outflow, queue):
                row = await self.desk.books.one("hold_over", destination=self.label)
                log.info("a release is over", destination=self.label, released=row[0] if row else None)

    async def _canaries(self, outflow: Outflow) -> bool:
        """Whether all of them lived. After a restart the one under way is looked at again, not sent again."""
        ids = self.hold.stage_ids
        for stage in range(self.hold.stage, len(CANARIES)):
            lived = None
            while lived is None:
                sent = len(ids) if ids else await self._send_canary(outflow, CANARIES[stage])
                if not sent:
                    return await self._goes_on()
                lived, ids = await self._look(sent), None
            if not lived:
                return False
            await self.desk.books.change("next_stage", destination=self.label, stage=stage + 1)
        return True

    async def _send_canary(self, outflow: Outflow, size: int) -> int:
        """How many went; the books first, so that whoever comes after a crash knows whom to look for."""
        taken: list[Delivery] = []
        while len(taken) < size and (more := await outflow.take(size - len(taken), EMPTY)):
            taken += more
        if taken and await self._goes_on():
            canary = _who(taken)
            await self.desk.books.change("canary_out", destination=self.label, ids=json.dumps(canary))
            await outflow.let_go(taken, self._rate)
            await self.desk.books.change("canary_watched", destination=self.label)
            log.info("a canary is out", destination=self.label, size=len(taken))
            return len(canary)
        return 0

    async def _look(self, size: int) -> bool | None:
        """Whether it lives; None if it was never seen, so that others must take its place."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while await self._goes_on():
            row = await self.desk.books.one("canary_look", destination=self.label)
            failed, through, watched = row or (0, 0, True)
            if failed > size * TOLERATED:
                await self._failed(failed, size)
                return False
            if through >= size and watched:
                return True
            if clock() - began > UNSEEN and watched:
                await self.desk.books.change("canary_again", destination=self.label)
                return None
            await asyncio.sleep(LOOK_EVERY)
        return False

    async def _failed(self, failed: int, size: int) -> None:
        problem = f"{failed} of a canary of {size} failed again"
        await self.desk.books.change("canary_failed", destination=self.label, problem=problem)
        log.warning("a canary failed, the rest stays", destination=self.label, failed=failed, size=size)

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
        if row is None or row[0] != "releasing":
            return False
        self._rate = row[1] or 1
        return True

    async def _unbind(self, destination: Destination, queue: str) -> bool:
        """Nobody can pause it again between the look and the unbinding: the row is locked meanwhile."""
        async with self.desk.books.transaction() as page:
            row = await page.one("lock_hold", destination=self.label)
            if row is None or row[0] != "releasing":
                return False
            await self.desk.unbind(queue, self.desk.names.held_gate, destination.key)
            await page.change("hold_unbound", destination=self.label)
        return True


def _who(deliveries: Sequence[Delivery]) -> list[dict[str, str | int]]:
    """Which rounds of which retries these are; what has none of our headers cannot be looked for."""
    found: list[dict[str, str | int]] = []
    for delivery in deliveries:
        try:
            headers = HeaderReader(dict(walk(delivery.properties.headers or b"")))
            retry_id, round_ = headers.text(h.ID), headers.count(h.ROUND)
        except (RefusalError, BadTableError):
            continue
        if retry_id is not None and round_ is not None:
            found.append({"id": retry_id, "round": round_})
    return found

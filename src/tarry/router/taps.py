"""The queues that only the books read: what returned, what was reported and spooled, and what was cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tarry.audit.tap import Unwritten
from tarry.broker.consumer import Consumer
from tarry.contract.request import Delivery
from tarry.errors import AuditUnavailableError
from tarry.router.batches import Settled
from tarry.router.contain import GiveUp, contained
from tarry.router.keep import sleep_unless

log = structlog.get_logger()

BATCH = 500
LINGER = 0.1
"""Seconds that a batch waits for company: nobody waits for the books, and a few large batches cost less than many."""

REST = 4.0
"""Seconds that the books stand back when a burst begins, so that what comes due at once is brought home first."""


@dataclass(slots=True)
class Courtesy:
    """Whether to stand back. Once, until the books have caught up: under a lasting load they must keep pace."""

    rested: bool = False

    def rest(self, batch: int) -> float:
        """Seconds, after a batch of so many. A full one is how a burst begins."""
        begins = batch >= BATCH and not self.rested
        self.rested = batch >= BATCH
        return REST if begins else 0.0


class Writer(Protocol):
    """Writes one batch after the other; returns once it is in the books."""

    @property
    def trouble(self) -> AuditUnavailableError | None: ...
    async def handle(self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]) -> Unwritten: ...


@dataclass(frozen=True, slots=True)
class Tapped:
    """One such queue, and who writes what comes through it."""

    queue: str
    purpose: str
    writer: Writer

    def handler(self, consumer: Consumer, give_up: GiveUp) -> Callable[[list[Delivery]], Awaitable[Settled]]:
        """What cannot be written is for a person to see, and nobody waits for it."""
        courtesy = Courtesy()

        async def write(batch: Sequence[Delivery]) -> Settled:
            stays: list[int] = []
            for delivery, reason in await self.writer.handle(batch, consumer.arrived_ms):
                log.error("the books cannot read it, to review", queue=self.queue, reason=reason)
                stays += (await give_up(delivery, f"in {self.queue}: {reason}")).requeued
            return Settled([one.tag for one in batch if one.tag not in stays], stays)

        async def handle(batch: list[Delivery]) -> Settled:
            settled = await contained(batch, write, give_up)
            await sleep_unless(consumer.finishing, courtesy.rest(len(batch)))
            return settled

        return handle

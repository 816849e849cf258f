"""Batches on their way from a consumer through a handler: several at once, each settled as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tarry.broker.consumer import Consumer
from tarry.contract.request import Delivery

FIRST_REST = 1.0
LONGEST_REST = 4.0
"""Seconds that a request rests whose publish was not taken, so that a full tier is no busy loop."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What is to be done with the deliveries of a batch."""

    acked: Sequence[int] = ()
    requeued: Sequence[int] = ()
    """Tried again after a rest; the others go on meanwhile."""


Handle = Callable[[list[Delivery]], Awaitable[Settled]]


@dataclass(slots=True, eq=False)
class Batches:
    """The batches of one consumer. They outlive its connection: what they began they bring to an end."""

    consumer: Consumer
    handle: Handle
    at_once: int
    """The next is being worked on while the last is being confirmed."""
    orphans: set[asyncio.Task[None]]
    """Batches whose connection is gone; they go on, and nobody here waits for them."""
    working: set[asyncio.Task[None]] = field(default_factory=set)
    _rest: float = FIRST_REST
    _last_rest: float = 0.0

    async def run(self) -> str:
        """Until the consumer's end; the reason for it, empty if it was told to finish.

        What is under way is brought to its end unless the connection is gone.
        """
        closed = self.consumer.link.closed
        slots = asyncio.Semaphore(self.at_once)
        async for batch in self.consumer.batches():
            await slots.acquire()
            if self.consumer.link.given_up():
                break  # the broker has given these to somebody else by now
            task = asyncio.create_task(self._work(batch))
            self.working.add(task)
            task.add_done_callback(lambda done: self._ended(done, slots))
        if not closed.done() and self.working:
            await self._last_ones()
        self.orphans.update(self.working)
        return closed.result() if closed.done() else ""

    async def _last_ones(self) -> None:
        try:
            await asyncio.wait(set(self.working))
        except asyncio.CancelledError:
            for task in self.working:
                task.cancel()
            raise

    def _ended(self, task: asyncio.Task[None], slots: asyncio.Semaphore) -> None:
        self.working.discard(task)
        self.orphans.discard(task)
        slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.consumer.link.end(f"a batch failed: {error!r}")

    async def _work(self, batch: list[Delivery]) -> None:
        settled = await self.handle(batch)
        self.consumer.ack(settled.acked)
        if settled.requeued:
            # Outside the slot: a request that must wait keeps nobody else from going on.
            asyncio.get_running_loop().call_later(self._next_rest(), self.consumer.requeue, settled.requeued)

    def _next_rest(self) -> float:
        """Longer each time, as long as it goes on."""
        now = asyncio.get_running_loop().time()
        again = now - self._last_rest < 2 * self._rest
        self._rest = min(2 * self._rest, LONGEST_REST) if again else FIRST_REST
        self._last_rest = now
        return self._rest

"""Letting go what is held: each message is rejected, and the broker sends it on home with all its keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.broker.consumer import Consumer
from tarry.broker.declare import refusal
from tarry.broker.link import say
from tarry.contract.request import Delivery
from tarry.control.desk import Desk
from tarry.errors import BrokerUnreachableError
from tarry.topology.rights import known_router_rights

AT_ONCE = 0.02
"""Seconds' worth of messages that go together: a rate is kept evenly, not in bursts."""

HICCUP = 0.25
"""Seconds behind the rate that are caught up with: it is a rate on average, too."""

EMPTY = 1.0
"""Seconds without a message after which a held queue may be empty."""


@dataclass(slots=True)
class Outflow:
    """The consumer of one held queue. What it has in hand goes back in order if it ends."""

    consumer: Consumer
    _batches: AsyncIterator[list[Delivery]] = field(init=False)
    _coming: asyncio.Future[list[Delivery]] | None = None
    _in_hand: list[Delivery] = field(default_factory=list)
    _next_at: float = 0.0

    def __post_init__(self) -> None:
        self._batches = self.consumer.batches()

    @classmethod
    @asynccontextmanager
    async def open(cls, desk: Desk, queue: str, prefetch: int) -> AsyncIterator[Outflow]:
        """In hand are no more than `prefetch`: brokers mind a consumer that sits on messages."""
        try:
            consumer = await Consumer.open(desk.address, queue, "release", batch=prefetch, prefetch=prefetch)
        except ChannelClosedByBroker as closed:
            needed = known_router_rights(desk.files)
            raise refusal(desk.address, closed.reply_code, closed.reply_text, needed) from closed
        outflow = cls(consumer)
        try:
            yield outflow
        finally:
            await outflow._close()

    async def take(self, most: int, patience: float) -> Sequence[Delivery]:
        """Up to so many, the oldest first; none if there are none within so many seconds."""
        if not self._in_hand:
            self._coming = self._coming or asyncio.ensure_future(anext(self._batches))
            done, _ = await asyncio.wait([self._coming], timeout=patience)
            if not done:
                return []
            self._in_hand, self._coming = self._arrived(self._coming), None
        taken, self._in_hand = self._in_hand[:most], self._in_hand[most:]
        return taken

    async def take_last(self, most: int) -> list[Delivery]:
        """Up to so many, and no more are delivered. With a prefetch of as many, none has to go back to the queue: it
        would do so in another order on RabbitMQ 3.10.
        """
        taken: list[Delivery] = []
        while len(taken) < most and (more := await self.take(most - len(taken), EMPTY)):
            taken += more
        try:
            await self.consumer.cancel()
        except AMQPError as error:
            raise BrokerUnreachableError(f"The release was cut off: {say(error)}.") from error
        return taken

    async def let_go(self, deliveries: Sequence[Delivery], rate: int) -> None:
        """At this rate, evenly: a hiccup is made up for, a pause in the flow is not."""
        clock = asyncio.get_running_loop().time
        step = max(1, round(rate * AT_ONCE))
        for start in range(0, len(deliveries), step):
            part = deliveries[start : start + step]
            if clock() - self._next_at > HICCUP:
                self._next_at = clock()
            await asyncio.sleep(self._next_at - clock())
            self.consumer.reject([delivery.tag for delivery in part])
            self._next_at += len(part) / rate

    def _arrived(self, coming: asyncio.Future[list[Delivery]]) -> list[Delivery]:
        try:
            return coming.result()
        except StopAsyncIteration:
            reason = self.consumer.link.closed.result() if self.consumer.link.closed.done() else "no more batches"
            raise BrokerUnreachableError(f"The release was cut off: {reason}.") from None

    async def _close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await self._coming
        await self.consumer.link.close()

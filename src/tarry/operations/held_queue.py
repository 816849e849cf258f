"""Releases held messages: each is rejected, and the broker dead-letters it towards its destination, with its keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.amqp.connection import describe_error
from tarry.amqp.consumer import Consumer
from tarry.amqp.declare import refusal
from tarry.amqp.delivery import Delivery
from tarry.errors import BrokerUnreachableError
from tarry.operations.context import OperatorContext
from tarry.topology.rights import known_router_rights

AT_ONCE = 0.02
"""Seconds' worth of messages that are released together: small, so that the rate is even and without bursts."""

HICCUP = 0.25
"""A delay of up to this many seconds is caught up, so that the average rate is right as well."""

EMPTY = 1.0
"""Seconds without a message after which a held queue may be empty."""


@dataclass(slots=True)
class HeldQueue:
    """The consumer of one held queue. When it closes, its unacknowledged messages return to the queue in order."""

    consumer: Consumer
    _batches: AsyncIterator[list[Delivery]] = field(init=False)
    _coming: asyncio.Future[list[Delivery]] | None = None
    _in_hand: list[Delivery] = field(default_factory=list)
    _next_at: float = 0.0

    def __post_init__(self) -> None:
        self._batches = self.consumer.batches()

    @classmethod
    @asynccontextmanager
    async def open(cls, context: OperatorContext, queue: str, prefetch: int) -> AsyncIterator[HeldQueue]:
        """At most `prefetch` messages are unacknowledged: brokers close a channel that keeps them for too long."""
        try:
            consumer = await Consumer.open(context.address, queue, "release", batch=prefetch, prefetch=prefetch)
        except ChannelClosedByBroker as closed:
            needed = known_router_rights(context.files)
            raise refusal(context.address, closed.reply_code, closed.reply_text, needed) from closed
        held_queue = cls(consumer)
        try:
            yield held_queue
        finally:
            await held_queue._close()

    async def take(self, most: int, patience: float) -> Sequence[Delivery]:
        """Up to `most` messages, the oldest first; empty if none arrive within `patience` seconds."""
        if not self._in_hand:
            self._coming = self._coming or asyncio.ensure_future(anext(self._batches))
            done, _ = await asyncio.wait([self._coming], timeout=patience)
            if not done:
                return []
            self._in_hand, self._coming = self._arrived(self._coming), None
        taken, self._in_hand = self._in_hand[:most], self._in_hand[most:]
        return taken

    async def take_last(self, most: int) -> list[Delivery]:
        """Up to `most` messages; then the consumer is cancelled and no more are delivered.

        If the prefetch is `most` too, no message has to return to the queue: on RabbitMQ 3.10 it would do so in another
        order.
        """
        taken: list[Delivery] = []
        while len(taken) < most and (more := await self.take(most - len(taken), EMPTY)):
            taken += more
        try:
            await self.consumer.cancel()
        except AMQPError as error:
            raise BrokerUnreachableError(f"The release was interrupted: {describe_error(error)}.") from error
        return taken

    async def release(self, deliveries: Sequence[Delivery], rate: int, *, catch_up: float = HICCUP) -> None:
        """Rejects the messages evenly at this rate: a delay of up to `catch_up` is caught up, a longer gap is not.
        Without catching up, no second has more messages than the rate.
        """
        clock = asyncio.get_running_loop().time
        step = max(1, round(rate * AT_ONCE))
        for start in range(0, len(deliveries), step):
            part = deliveries[start : start + step]
            if clock() - self._next_at > catch_up:
                self._next_at = clock()
            await asyncio.sleep(self._next_at - clock())
            self.consumer.reject([delivery.tag for delivery in part])
            self._next_at += len(part) / rate

    def _arrived(self, coming: asyncio.Future[list[Delivery]]) -> list[Delivery]:
        try:
            return coming.result()
        except StopAsyncIteration:
            reason = self.consumer.link.closed.result() if self.consumer.link.closed.done() else "the consumer ended"
            raise BrokerUnreachableError(f"The release was interrupted: {reason}.") from None

    async def _close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await self._coming
        await self.consumer.link.close()

"""Consumes a queue in batches. A batch ends when it is full or a few milliseconds after its first message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pika.channel import Channel

from tarry.amqp.connection import AmqpConnection
from tarry.amqp.delivery import Delivery
from tarry.amqp.frames import ack_frame, reject_frame, requeue_frame
from tarry.amqp.url import Address

LINGER = 0.004
"""Default time in seconds that a batch waits for more messages."""

LARGEST_BATCH = 8 << 20
"""Bytes of bodies and headers in one batch: a batch is written in one SQL statement, whose size is limited."""


class Consumer:
    """Receives the deliveries of one queue and settles them."""

    def __init__(self, link: AmqpConnection, *, batch: int, linger: float = LINGER) -> None:
        self.link = link
        self._most = batch
        self._company = linger
        self._waiting: list[Delivery] = []
        self._unsettled: dict[int, int] = {}
        """Unacknowledged delivery tags in order, each with its arrival time in milliseconds since 1970."""
        self._some = asyncio.Event()
        self._full = asyncio.Event()
        self.finishing = asyncio.Event()
        """Set once `batches` yields no more."""

    @classmethod
    async def open(
        cls,
        address: Address,
        queue: str,
        purpose: str,
        *,
        batch: int = 500,
        prefetch: int = 2_000,
        linger: float = LINGER,
        arguments: Mapping[str, Any] | None = None,
    ) -> Consumer:
        """Connect and wait until the broker has confirmed the consumer. `arguments` are those of the consumer."""
        link = await AmqpConnection.open(address, purpose)
        consumer = cls(link, batch=batch, linger=linger)
        link.connection.on_delivery = consumer._on_delivery
        link.closes_with_channel()
        link.closed.add_done_callback(lambda _: consumer.finish())
        link.channel.basic_qos(prefetch_count=prefetch)
        try:
            given = dict(arguments or {})
            await link.answer(
                lambda done: link.channel.basic_consume(queue, lambda *_: None, arguments=given, callback=done)
            )
        except BaseException:
            await link.close()
            raise
        return consumer

    async def batches(self) -> AsyncIterator[list[Delivery]]:
        """Yield batches until the connection is closed or `finish` is called."""
        while True:
            await self._some.wait()
            if len(self._waiting) < self._most:
                await self._linger()
            if self.finishing.is_set():
                return
            yield self._take()

    def finish(self) -> None:
        """Yield no more batches; those already yielded can still be settled."""
        self.finishing.set()
        self._some.set()
        self._full.set()

    def arrived_ms(self, tag: int) -> int:
        """When an unsettled delivery arrived, in milliseconds since 1970."""
        return self._unsettled[tag]

    def ack(self, tags: Sequence[int]) -> None:
        """Acknowledge with one frame for all tags, unless an older delivery is still unsettled."""
        if not tags or not self.link.is_open:
            return
        for tag in tags:
            self._unsettled.pop(tag, None)
        channel, last = self.link.channel.channel_number, max(tags)
        if next(iter(self._unsettled), last + 1) > last:
            self.link.connection.write([ack_frame(channel, last, multiple=True)])
        else:
            self.link.connection.write(ack_frame(channel, tag) for tag in tags)

    def reject(self, tags: Sequence[int]) -> None:
        """Reject without requeueing: the queue dead-letters the messages, in this order."""
        if not tags or not self.link.is_open:
            return
        for tag in tags:
            self._unsettled.pop(tag, None)
        channel = self.link.channel.channel_number
        self.link.connection.write(reject_frame(channel, tag) for tag in tags)

    def requeue(self, tags: Sequence[int]) -> None:
        if not tags or not self.link.is_open:
            return
        for tag in tags:
            self._unsettled.pop(tag, None)
        channel = self.link.channel.channel_number
        self.link.connection.write(requeue_frame(channel, tag) for tag in tags)

    async def cancel(self) -> None:
        """Cancel the consumer; messages already delivered can still be settled."""
        channel = self.link.channel
        for tag in channel.consumer_tags:
            await self.link.answer(partial(_cancel, channel, tag))

    def _take(self) -> list[Delivery]:
        count, size = 0, 0
        for delivery in self._waiting[: self._most]:
            size += len(delivery.body) + len(delivery.properties.headers or b"")
            if count and size > LARGEST_BATCH:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        if not self._waiting:
            self._some.clear()
        if len(self._waiting) < self._most:
            self._full.clear()
        return taken

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(self._company):
                await self._full.wait()
        except TimeoutError:
            return

    def _on_delivery(self, delivery: Delivery) -> None:
        self._unsettled[delivery.tag] = time.time_ns() // 1_000_000
        self._waiting.append(delivery)
        self._some.set()
        if len(self._waiting) >= self._most:
            self._full.set()


def _cancel(channel: Channel, tag: str, done: Callable[[Any], None]) -> None:
    channel.basic_cancel(tag, callback=done)

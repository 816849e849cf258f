"""Scans a queue from its head without acknowledging, and then acknowledges or requeues the messages it kept.

A `QueueScan` uses several `ScanChannel`s, each on a connection of its own and with a limited number of unacknowledged
messages. The broker finds an acknowledged message by walking through all unacknowledged messages of the channel. One
channel with a whole queue would take half a minute to requeue fifty thousand; several with a few thousand each take a
few seconds.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.amqp.connection import AmqpConnection, describe_error
from tarry.amqp.declare import refusal
from tarry.amqp.delivery import Delivery
from tarry.amqp.frames import ack_frame, requeue_frame
from tarry.amqp.url import Address
from tarry.errors import BrokerUnreachableError

MOST = 2_000
"""Messages in one scan channel, unless the queue is long."""

LARGEST = 65_535
"""The largest prefetch count: the protocol has sixteen bits for it."""

_TAG = "tarry review"


class ScanChannel:
    """Calls `takes` for each delivery to decide whether to keep it. The others are requeued after the scan."""

    def __init__(self, link: AmqpConnection, queue: str, address: Address, takes: Callable[[Delivery], bool]) -> None:
        self._link = link
        self._queue = queue
        self._address = address
        self._takes = takes
        self.seen = 0
        self.kept: list[Delivery] = []
        self._others: list[int] = []
        self._most = 0

    @classmethod
    async def open(cls, address: Address, queue: str, takes: Callable[[Delivery], bool]) -> ScanChannel:
        link = await AmqpConnection.open(address, "review")
        scan_channel = cls(link, queue, address, takes)
        link.closes_with_channel()
        link.connection.on_delivery = scan_channel._on_delivery
        return scan_channel

    async def reach(self, most: int) -> None:
        """Starts to consume, up to `most` messages."""
        channel, self._most = self._link.channel, most
        channel.basic_qos(prefetch_count=most)
        await self._ask(
            lambda done: channel.basic_consume(self._queue, lambda *_: None, consumer_tag=_TAG, callback=done)
        )

    async def stop(self) -> None:
        """Stops deliveries. Messages already received stay unacknowledged."""
        await self._ask(lambda done: self._link.channel.basic_cancel(_TAG, callback=done))

    def put_others_back(self) -> None:
        """Requeues those before the first kept message in one frame, and the rest one by one, in their order."""
        others, self._others = self._others, []
        first = self.kept[0].tag if self.kept else None
        ahead = [tag for tag in others if first is None or tag < first]
        if ahead:
            self._link.channel.basic_nack(ahead[-1], multiple=True, requeue=True)
        self.put_back(others[len(ahead) :])

    def ack(self, tags: Sequence[int]) -> None:
        """Removes the messages from the queue permanently. Raises if the connection is lost."""
        self.check()
        channel = self._link.channel.channel_number
        self._link.connection.write(ack_frame(channel, tag) for tag in tags)

    def put_back(self, tags: Sequence[int]) -> None:
        channel = self._link.channel.channel_number
        self._link.connection.write(requeue_frame(channel, tag) for tag in sorted(tags))

    async def ready(self) -> int:
        """The number of messages that are ready in the queue.

        When this returns, the broker has processed everything that was settled on this channel before.
        """
        found: list[int] = []

        def ask(done: Callable[[Any], None]) -> None:
            def declared(answer: Any) -> None:
                found.append(int(answer.method.message_count))
                done(answer)

            self._link.channel.queue_declare(self._queue, passive=True, callback=declared)

        await self._ask(ask)
        return found[-1]

    @property
    def full(self) -> bool:
        return self.seen >= self._most

    @property
    def is_open(self) -> bool:
        return self._link.is_open

    def check(self) -> None:
        """Raises if the connection is lost, and with it all unacknowledged messages."""
        if not self._link.is_open:
            reason = self._link.closed.result() if self._link.closed.done() else "the channel is closed"
            raise BrokerUnreachableError(f"The connection to {self._address} ended: {reason}.")

    async def close(self) -> None:
        await self._link.close()

    def _on_delivery(self, delivery: Delivery) -> None:
        self.seen += 1
        if self._takes(delivery):
            self.kept.append(delivery)
        else:
            self._others.append(delivery.tag)

    async def _ask(self, ask: Callable[[Callable[[Any], None]], object]) -> None:
        self.check()
        try:
            await self._link.answer(ask)
        except ChannelClosedByBroker as closed:
            raise refusal(self._address, closed.reply_code, closed.reply_text) from closed
        except AMQPError as error:
            raise BrokerUnreachableError(
                f"The connection to {self._address} ended: {describe_error(error)}."
            ) from error


QUIET = 0.1
"""Seconds without a delivery after which the scan checks whether the queue is empty."""

LONGEST_SILENCE = 10.0
"""Seconds after which the scan gives up on a queue that has messages but delivers none."""

FLOOD = 100_000
"""A scan ends after twice the messages that were ready at its start, plus this many."""

Wanted = Callable[[Delivery], bool]


@dataclass(frozen=True, slots=True)
class ScannedMessage:
    """A message that the scan kept. It is unacknowledged and must be settled."""

    delivery: Delivery
    scan_channel: ScanChannel


@dataclass(slots=True)
class ScanResult:
    """The result of one scan of the queue."""

    kept: list[ScannedMessage] = field(default_factory=list)
    seen: int = 0
    whole: bool = False
    """Whether the scan reached the end of the queue."""


@dataclass(slots=True)
class QueueScan:
    """One scan of a queue, and the settling of the messages that it kept."""

    address: Address
    queue: str
    wanted: Wanted
    room: int
    """How many more messages may be kept."""
    bytes_left: int
    _channels: list[ScanChannel] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, address: Address, queue: str, wanted: Wanted, *, most: int, most_bytes: int
    ) -> AsyncIterator[QueueScan]:
        """Messages that are not settled when the block ends return to the queue."""
        scan = cls(address, queue, wanted, most, most_bytes)
        try:
            yield scan
        finally:
            await asyncio.gather(*(scan_channel.close() for scan_channel in scan._channels))

    async def look(self) -> ScanResult:
        """Scans from head to end, or until `room` or `bytes_left` is used up, and requeues the unwanted messages."""
        scan_channel = await self._another()
        there = await scan_channel.ready()
        await scan_channel.reach(MOST)
        whole = await self._until_the_end(there)
        await asyncio.gather(*(one.stop() for one in self._channels))
        for one in self._channels:
            one.put_others_back()
        kept = [ScannedMessage(delivery, one) for one in self._channels for delivery in one.kept]
        return ScanResult(kept, self._seen, whole)

    def ack(self, held: Iterable[ScannedMessage]) -> None:
        """Removes the messages from the queue permanently."""
        for scan_channel, tags in _by_channel(held).items():
            scan_channel.ack(tags)

    def put_back(self, held: Iterable[ScannedMessage]) -> None:
        for scan_channel, tags in _by_channel(held).items():
            if scan_channel.is_open:
                scan_channel.put_back(tags)

    def check(self) -> None:
        """Raises if a connection is lost: its messages are in the queue again, and this scan must not act on them."""
        for scan_channel in self._channels:
            scan_channel.check()

    async def settled(self) -> None:
        """Returns when the broker has processed every acknowledgement; raises if a connection is lost before that."""
        for scan_channel in self._channels:
            await scan_channel.ready()

    @property
    def _seen(self) -> int:
        return sum(scan_channel.seen for scan_channel in self._channels)

    @property
    def _is_full(self) -> bool:
        return self.room <= 0 or self.bytes_left <= 0

    async def _another(self) -> ScanChannel:
        self._channels.append(await ScanChannel.open(self.address, self.queue, self._take))
        return self._channels[-1]

    def _take(self, delivery: Delivery) -> bool:
        if self._is_full or not self.wanted(delivery):
            return False
        self.room -= 1
        self.bytes_left -= len(delivery.body)
        return True

    async def _until_the_end(self, there: int) -> bool:
        """Returns whether the scan reached the end of the queue.

        Messages that were ready at the start come before messages that arrived since. A queue that grows faster than
        it is read has no end, so the scan gives up on it.
        """
        silence = 0.0
        while not self._is_full:
            before, last = self._seen, self._channels[-1]
            if last.full:
                await (await self._another()).reach(min(max(MOST, before // 10), LARGEST))
            await asyncio.sleep(QUIET)
            self.check()
            silence = silence + QUIET if self._seen == before and not last.full else 0.0
            if silence and not await last.ready():
                return True
            if silence > LONGEST_SILENCE or self._seen > 2 * there + FLOOD:
                return False
        return False


def _by_channel(held: Iterable[ScannedMessage]) -> dict[ScanChannel, list[int]]:
    found: defaultdict[ScanChannel, list[int]] = defaultdict(list)
    for one in held:
        found[one.scan_channel].append(one.delivery.tag)
    return found

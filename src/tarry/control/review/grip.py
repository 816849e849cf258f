"""A part of a hand: one connection that holds so many messages of a queue, unacknowledged, until it is told which to
let go.

The broker finds an acknowledged message by walking through all that the same channel holds. One channel with a whole
queue in it would take half a minute to put fifty thousand back; several with a few thousand each take a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.broker.address import Address
from tarry.broker.declare import refusal
from tarry.broker.frames import ack_frame, requeue_frame
from tarry.broker.link import Link, say
from tarry.contract.request import Delivery
from tarry.errors import BrokerUnreachableError

MOST = 2_000
"""Messages in one grip, while the queue is not a long one."""

LARGEST = 65_535
"""The wire has sixteen bits for it."""

_TAG = "tarry review"


class Grip:
    """Told of each delivery: `takes` says whether it is kept. The others go back when the look is over."""

    def __init__(self, link: Link, queue: str, address: Address, takes: Callable[[Delivery], bool]) -> None:
        self._link = link
        self._queue = queue
        self._address = address
        self._takes = takes
        self.seen = 0
        self.kept: list[Delivery] = []
        self._others: list[int] = []
        self._most = 0

    @classmethod
    async def open(cls, address: Address, queue: str, takes: Callable[[Delivery], bool]) -> Grip:
        link = await Link.open(address, "review")
        grip = cls(link, queue, address, takes)
        link.closes_with_channel()
        link.connection.on_delivery = grip._on_delivery
        return grip

    async def reach(self, most: int) -> None:
        """Begin to consume: so many and no more."""
        channel, self._most = self._link.channel, most
        channel.basic_qos(prefetch_count=most)
        await self._ask(
            lambda done: channel.basic_consume(self._queue, lambda *_: None, consumer_tag=_TAG, callback=done)
        )

    async def stop(self) -> None:
        """No more deliveries; all that is held stays so."""
        await self._ask(lambda done: self._link.channel.basic_cancel(_TAG, callback=done))

    def put_others_back(self) -> None:
        """In one frame as far as nothing that is kept stands before them; the rest one by one, in their order."""
        others, self._others = self._others, []
        first = self.kept[0].tag if self.kept else None
        ahead = [tag for tag in others if first is None or tag < first]
        if ahead:
            self._link.channel.basic_nack(ahead[-1], multiple=True, requeue=True)
        self.put_back(others[len(ahead) :])

    def ack(self, tags: Sequence[int]) -> None:
        """Out of the queue, for good."""
        channel = self._link.channel.channel_number
        self._link.connection.write(ack_frame(channel, tag) for tag in tags)

    def put_back(self, tags: Sequence[int]) -> None:
        channel = self._link.channel.channel_number
        self._link.connection.write(requeue_frame(channel, tag) for tag in sorted(tags))

    async def ready(self) -> int:
        """How many are in the queue and in nobody's hand. The broker has seen all that was settled before this."""
        found: list[int] = []

        def ask(done: Callable[[Any], None]) -> None:
            def told(answer: Any) -> None:
                found.append(int(answer.method.message_count))
                done(answer)

            self._link.channel.queue_declare(self._queue, passive=True, callback=told)

        await self._ask(ask)
        return found[-1]

    @property
    def full(self) -> bool:
        return self.seen >= self._most

    @property
    def is_open(self) -> bool:
        return self._link.is_open

    def check(self) -> None:
        """Raises if the connection is gone, and with it all that was held."""
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
            raise BrokerUnreachableError(f"The connection to {self._address} ended: {say(error)}.") from error

"""A process that consumes one queue until SIGTERM: each arrival is on the disk before it is settled as planned."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.chaos.load.paper import Arrival, Did, Writer
from tests.chaos.load.plan import Task, read_body
from tests.chaos.load.producer import ANSWER, TROUBLE, now_ms, while_wanted

PREFETCH = 400
LOOK_EVERY = 0.5


@dataclass
class Consumer:
    """Decides by the round that a message is in, so that a copy is dealt with as the first one was."""

    url: str
    queue: str
    arrivals: Writer
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: list[tuple[AbstractIncomingMessage, int]] = field(default_factory=list)
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while not self.stop.is_set():
            self._waiting.clear()
            try:
                async with (
                    await aio_pika.connect(self.url, timeout=5) as connection,
                    await aio_pika.connect(self.url, timeout=5) as other,
                ):
                    await self._consume(await connection.channel(), await other.channel())
            except TROUBLE:
                await asyncio.sleep(0.3)

    async def _consume(self, channel: AbstractChannel, asking: AbstractChannel) -> None:
        await channel.set_qos(PREFETCH)
        queue = await channel.get_queue(self.queue)
        cancelled = asyncio.Event()
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(lambda *_: cancelled.set())
        await queue.consume(self._on_message)
        while not self.stop.is_set() and not cancelled.is_set():
            await self._some_or_pause()
            batch, self._waiting = self._waiting, []
            self._some.clear()
            if channel.is_closed or asking.is_closed:
                self._note(batch)
                return
            await self._settle(batch, asking)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self._waiting.append((message, now_ms()))
        self._some.set()

    async def _some_or_pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await self._some.wait()
        except TimeoutError:
            return

    def _note(self, batch: Sequence[tuple[AbstractIncomingMessage, int]]) -> list[tuple[AbstractIncomingMessage, Did]]:
        read = [(message, at, read_body(message.body)) for message, at in batch]
        done = [(message, at, task, _what(message, task)) for message, at, task in read]
        self.arrivals.arrived(self._arrival(message, at, task, did) for message, at, task, did in done)
        return [(message, did) for message, _, _, did in done]

    def _arrival(self, message: AbstractIncomingMessage, at_ms: int, task: Task | None, did: Did) -> Arrival:
        return Arrival(
            number=task.number if task else -1,
            queue=self.queue,
            round=_header(message, "tarry-round"),
            due_ms=_header(message, "tarry-due-ms"),
            at_ms=at_ms,
            redelivered=bool(message.redelivered),
            did=did,
        )

    async def _settle(self, batch: Sequence[tuple[AbstractIncomingMessage, int]], asking: AbstractChannel) -> None:
        noted = self._note(batch)
        async with asyncio.timeout(ANSWER):
            await asyncio.gather(*(self._one(message, did, asking) for message, did in noted))

    async def _one(self, message: AbstractIncomingMessage, did: Did, asking: AbstractChannel) -> None:
        if did == "reject":
            await message.reject(requeue=False)
            return
        if did == "ask":
            await asking.default_exchange.publish(self._request(message), "retry.scheduled", mandatory=True)
        await message.ack()

    def _request(self, message: AbstractIncomingMessage) -> aio_pika.Message:
        headers = {name: value for name, value in message.headers.items() if not name.startswith("x-")}
        return aio_pika.Message(
            message.body,
            message_id=message.message_id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers=headers | {"original_queue": self.queue},
        )


def _what(message: AbstractIncomingMessage, task: Task | None) -> Did:
    if task is None or task.message_id != message.message_id:
        return "damaged"
    if _header(message, "tarry-round") >= task.fails and not task.ends_in_review:
        return "accept"
    return "reject" if task.form == "reject" else "ask"


def _header(message: AbstractIncomingMessage, name: str) -> int:
    found = message.headers.get(name, 0)
    return found if isinstance(found, int) else 0


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "queue", "arrivals"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    consumer = Consumer(given.url, given.queue, Writer(Path(given.arrivals)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop.set)
    await while_wanted(consumer.run())


if __name__ == "__main__":
    asyncio.run(main())

"""Sends retry requests in the headers form of the contract, for every contender that takes them from a queue.

python -m benchmarks.contenders.apps.requests EXCHANGE COUNT BODY_BYTES PER_SECOND [ladder]
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

import uvloop

from benchmarks.router.load import HEADERS
from benchmarks.router.stage import ORIGIN
from tarry.amqp.field_tables import entry
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.amqp.url import Address

STEP = 0.01
BATCH_BYTES = 4 << 20


class Sender:
    """Numbered requests, confirmed."""

    def __init__(self, publisher: Publisher, exchange: str, body: int, *, ladder: bool) -> None:
        self.publisher, self.exchange, self.ladder = publisher, exchange, ladder
        self.body = (bytes(range(256)) * (body // 256 + 1))[:body]
        self.first = time.time_ns()
        self.number = 0

    async def send(self, count: int) -> None:
        outcomes = await self.publisher.publish([self._request() for _ in range(count)])
        if set(outcomes) - {PublishOutcome.CONFIRMED}:
            raise RuntimeError(f"the broker did not take every request: {set(outcomes)}")

    def _request(self) -> Message:
        self.number += 1
        name = f"m-{self.first}-{self.number}"
        headers = HEADERS + (self._odd_delay() if self.ladder else b"")
        properties = Properties(headers=headers, delivery_mode=PERSISTENT, message_id=name.encode())
        return Message(self.exchange, ORIGIN, properties, self.body, name)

    def _odd_delay(self) -> bytes:
        """A delay that no tier has: two to four seconds, to the millisecond."""
        delay = random.randint(2_000, 4_000)
        due = time.time_ns() // 1_000_000 + delay
        asked = entry("asked-due-ms", due)
        return entry("error_class", "rate_limited") + entry("retry_after_ms", delay) + asked


async def send(exchange: str, count: int, body: int, per_second: int, *, ladder: bool) -> None:
    publisher = await Publisher.open(Address.parse(os.environ["BENCH_URL"]), "benchmark: requests")
    sender = Sender(publisher, exchange, body, ladder=ladder)
    if per_second:
        await _steadily(sender, count, per_second)
    else:
        most = max(1, min(1_000, BATCH_BYTES // max(body, 1)))
        for start in range(0, count, most):
            await sender.send(min(most, count - start))
    await publisher.link.close()


async def _steadily(sender: Sender, count: int, per_second: int) -> None:
    """Open loop: what is due is sent, whether the last confirms have come or not."""
    loop = asyncio.get_running_loop()
    started, sent = loop.time(), 0
    going: set[asyncio.Task[None]] = set()
    while sent < count:
        due = min(int((loop.time() - started) * per_second) + 1, count)
        if due > sent:
            task = asyncio.create_task(sender.send(due - sent))
            going.add(task)
            task.add_done_callback(going.discard)
            sent = due
        await asyncio.sleep(STEP)
    await asyncio.gather(*going)


if __name__ == "__main__":
    exchange, count, body, per_second = sys.argv[1], *map(int, sys.argv[2:5])
    uvloop.run(send(exchange, count, body, per_second, ladder="ladder" in sys.argv[5:]))

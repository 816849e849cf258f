"""A process that publishes numbered messages at a steady rate until SIGTERM, and insists on a confirm for each."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel

from tests.chaos.load.paper import Writer
from tests.chaos.load.plan import Plan, Task

TROUBLE = (aio_pika.exceptions.AMQPError, OSError, TimeoutError, RuntimeError)
"""aio-pika says RuntimeError of a channel that was closed under it."""
ANSWER = 20.0
AT_ONCE = 100


async def while_wanted(work: Coroutine[Any, Any, None]) -> None:
    """The process that started this one may be killed: then nothing is left to judge."""
    parent = os.getppid()
    working = asyncio.ensure_future(work)
    while not working.done():
        await asyncio.wait([working], timeout=1)
        if os.getppid() != parent:
            working.cancel()
            return
    working.result()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Producer:
    """Numbers are planned on paper first; what is not confirmed is kept and sent again."""

    url: str
    rate: float
    plan: Plan
    ledger: Writer
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _next: int = 0
    _open: dict[int, Task] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        while not self.stop.is_set() or self._open:
            try:
                async with await aio_pika.connect(self.url, timeout=5) as connection:
                    await self._publish(await connection.channel())
            except TROUBLE:
                await asyncio.sleep(0.3)

    async def _publish(self, channel: AbstractChannel) -> None:
        """Until the end, or until the connection fails."""
        if self._open:
            self.ledger.again(self._open)
            await self._send(channel, list(self._open.values()))
        while not self.stop.is_set():
            await self._send(channel, self._due())
            await asyncio.sleep(0.02)

    def _due(self) -> list[Task]:
        """At the rate, and no faster to make up for a pause: that would be another test."""
        wanted = int((time.monotonic() - self._started) * self.rate)
        count = min(max(0, wanted - self._next), AT_ONCE)
        tasks = [self.plan.task(number) for number in range(self._next, self._next + count)]
        self._next += count
        self._started = max(self._started, time.monotonic() - (self._next + AT_ONCE) / self.rate)
        self.ledger.planned(tasks, now_ms())
        self._open |= {task.number: task for task in tasks}
        return tasks

    async def _send(self, channel: AbstractChannel, tasks: Sequence[Task]) -> None:
        async with asyncio.timeout(ANSWER):
            answers = await asyncio.gather(*(_one(channel, task) for task in tasks), return_exceptions=True)
        taken = [task.number for task, answer in zip(tasks, answers, strict=True) if answer is None]
        self.ledger.confirmed(taken, now_ms())
        for number in taken:
            del self._open[number]
        for answer in answers:
            if answer is not None:
                raise answer


async def _one(channel: AbstractChannel, task: Task) -> None:
    headers: dict[str, str | int] = {}
    key = task.queue
    if task.form == "headers":
        key = "retry.scheduled"
        headers |= {"original_queue": task.queue}
        headers |= {"retry_after_ms": task.hint_ms} if task.hint_ms else {}
        headers |= {"error_class": "final"} if task.final else {}
    message = aio_pika.Message(
        task.body(),
        message_id=task.message_id,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        headers=dict(headers),
    )
    await channel.default_exchange.publish(message, key, mandatory=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "rate", "seed", "prefix", "ledger"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--light", action="store_true")
    given = parser.parse_args()
    plan = Plan(int(given.seed), given.prefix, tuple(given.extra), given.light)
    producer = Producer(given.url, float(given.rate), plan, Writer(Path(given.ledger)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, producer.stop.set)
    await while_wanted(producer.run())


if __name__ == "__main__":
    asyncio.run(main())

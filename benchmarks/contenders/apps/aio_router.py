"""The loop of benchmarks/router/on_aio_pika.py, for ever, and a tap beside it, telling what they have done.

python -m benchmarks.contenders.apps.aio_router, with the settings of the service and BENCH_MARKS set
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

import aio_pika
import uvloop
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.contenders.marks import Marker
from benchmarks.router.on_aio_pika import BATCH, LINGER, AioRouter
from tarry.settings import Settings, load_settings
from tarry.store.claims import Store
from tarry.store.rows import Return

PREFETCH = 3 * BATCH


class Marked(AioRouter):
    """Counts."""

    def __init__(self, store: Store) -> None:
        super().__init__(sys.maxsize, store)
        self.marker = Marker()

    async def handle(self, batch: list[AbstractIncomingMessage]) -> None:
        await super().handle(batch)
        self.marker.scheduled(len(batch))


async def tap(settings: Settings, store: Store) -> None:
    """Writes every return to the store, one batch after the other."""
    names, marker = settings.read_topology().broker_names, Marker()
    waiting: asyncio.Queue[tuple[AbstractIncomingMessage, int]] = asyncio.Queue()

    async def on_message(message: AbstractIncomingMessage) -> None:
        waiting.put_nowait((message, time.time_ns() // 1_000_000))

    async with await aio_pika.connect(settings.address.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        await (await channel.get_queue(names.audit, ensure=False)).consume(on_message)
        while True:
            batch = [await waiting.get()]
            if waiting.qsize() < BATCH:
                await asyncio.sleep(LINGER)
            batch += [waiting.get_nowait() for _ in range(min(BATCH - 1, waiting.qsize()))]
            await store.returned([_return(message, at_ms) for message, at_ms in batch])
            for message, _ in batch:
                await message.ack()
            marker.recorded(len(batch))


def _return(one: AbstractIncomingMessage, at_ms: int) -> Return:
    found = one.headers
    tier, queue = str(found["x-first-death-queue"]), str(found["original_queue"])
    due_ms, round_ = int(str(found["tarry-due-ms"])), int(str(found["tarry-round"]))
    return Return(str(found["tarry-id"]), round_, queue, 1, due_ms, at_ms, bool(one.redelivered), tier)


async def main() -> None:
    settings = load_settings()
    store = Store(settings.dsn, f"aio-{uuid.uuid4()}")
    await store.open()
    await asyncio.gather(Marked(store).run(), tap(settings, store))


if __name__ == "__main__":
    uvloop.run(main())

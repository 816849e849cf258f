"""How late retries come back, measured where it matters: at the consumer of the origin queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from benchmarks.router.load import paced
from benchmarks.router.own import serving
from benchmarks.router.stage import ORIGIN, Space
from tarry.amqp.consumer import Consumer
from tarry.amqp.field_tables import pick
from tarry.amqp.publisher import Publisher
from tarry.contract import headers as h

PATIENCE = 60.0
_DUE = h.DUE.encode()


@dataclass(frozen=True)
class Drift:
    """Milliseconds after the due moment."""

    count: int
    least: int
    p50: int
    p99: int
    most: int


def drift(space: Space, per_second: int, seconds: float) -> Drift:
    with serving(space):
        return asyncio.run(_drift(space, per_second, seconds))


async def _drift(space: Space, per_second: int, seconds: float) -> Drift:
    publisher = await Publisher.open(space.address, "benchmark: load")
    consumer = await Consumer.open(space.address, ORIGIN, "benchmark: origin")
    watching = asyncio.create_task(_watch(consumer, int(per_second * seconds)))
    async for _ in paced(publisher, per_second, seconds):
        pass
    try:
        late = sorted(await asyncio.wait_for(watching, PATIENCE))
    finally:
        await asyncio.gather(publisher.link.close(), consumer.link.close())
    return Drift(len(late), late[0], late[len(late) // 2], late[int(len(late) * 0.99)], late[-1])


async def _watch(consumer: Consumer, count: int) -> list[int]:
    """The drift of each, until all have come."""
    late: list[int] = []
    async for batch in consumer.batches():
        for one in batch:
            due = pick(one.properties.headers or b"", {_DUE})[_DUE].integer() or 0
            late.append(consumer.arrived_ms(one.tag) - due)
        consumer.ack([one.tag for one in batch])
        if len(late) >= count:
            break
    return late

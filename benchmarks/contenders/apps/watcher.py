"""Consumes the origin queue as fast as a consumer can, and notes when each message came and when it was due.

python -m benchmarks.contenders.apps.watcher URL QUEUE DUE_HEADER
"""

from __future__ import annotations

import sys

import uvloop

from benchmarks.contenders.marks import Marker
from tarry.amqp.consumer import Consumer
from tarry.amqp.field_tables import pick
from tarry.amqp.url import Address


async def watch(url: str, queue: str, header: bytes) -> None:
    marker = Marker()
    consumer = await Consumer.open(Address.parse(url), queue, "benchmark: origin")
    async for batch in consumer.batches():
        seen = []
        for one in batch:
            found = pick(one.properties.headers or b"", {header}).get(header)
            due = found.integer() if found else None
            seen.append((consumer.arrived_ms(one.tag) / 1000, (due or 0) / 1000))
        marker.arrivals(seen)
        consumer.ack([one.tag for one in batch])


if __name__ == "__main__":
    uvloop.run(watch(sys.argv[1], sys.argv[2], sys.argv[3].encode()))

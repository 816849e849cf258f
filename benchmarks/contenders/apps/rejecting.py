"""A consumer that rejects every message once, back into its queue, and takes it the second time.

python -m benchmarks.contenders.apps.rejecting, with BENCH_URL, BENCH_DELAY and BENCH_MARKS set
"""

from __future__ import annotations

import os
import struct
import time

import uvloop
from pika import spec

from benchmarks.contenders.marks import Marker
from tarry.amqp.consumer import Consumer
from tarry.amqp.url import Address

QUEUE = "bench.delayed"
REJECT = struct.Struct(">BHIIQBB")
"""Frame type, channel, size, method, delivery tag, requeue, end."""


async def main() -> None:
    delay, marker = float(os.environ["BENCH_DELAY"]), Marker()
    due: dict[bytes, float] = {}
    consumer = await Consumer.open(Address.parse(os.environ["BENCH_URL"]), QUEUE, "benchmark: rejecting")
    channel = consumer.link.channel.channel_number
    async for batch in consumer.batches():
        again = [one for one in batch if one.redelivered]
        first = [one for one in batch if not one.redelivered]
        seen = [(consumer.arrived_ms(one.tag) / 1000, due.pop(one.properties.message_id or b"", 0.0)) for one in again]
        marker.arrivals(seen)
        consumer.ack([one.tag for one in again])
        moment = time.time() + delay
        due.update((one.properties.message_id or b"", moment) for one in first)
        # Only a reject counts as a failed delivery; what the consumer's own requeue sends is a nack.
        frames = [
            REJECT.pack(spec.FRAME_METHOD, channel, 13, spec.Basic.Reject.INDEX, one.tag, 1, spec.FRAME_END)
            for one in first
        ]
        consumer.link.connection.write(frames)
        for one in first:
            consumer._unsettled.pop(one.tag, None)  # noqa: SLF001 - settled, by a frame that it has no method for
        marker.scheduled(len(first))


if __name__ == "__main__":
    uvloop.run(main())

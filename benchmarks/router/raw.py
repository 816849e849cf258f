"""Raw confirmed publishing with pika's asyncio connection, into a quorum queue: the most that this client can do.

python -m benchmarks.router.raw URL COUNT
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pika
import uvloop
from pika.adapters.asyncio_connection import AsyncioConnection

QUEUE = "bench.raw"
WINDOW = 2_000
"""Unconfirmed at a time: as many as the router has in flight."""

BODY = bytes(512)


class RawPublisher:
    """pika as its documentation shows it, pushed as hard as it goes."""

    def __init__(self, loop: Any, url: str, count: int) -> None:
        self.loop, self.count = loop, count
        self.sent = self.confirmed = 0
        self.started = self.seconds = 0.0
        self.channel: Any = None
        AsyncioConnection(pika.URLParameters(url), on_open_callback=self._opened, custom_ioloop=loop)

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._declare)

    def _declare(self, channel: Any) -> None:
        self.channel = channel
        arguments = {"x-queue-type": "quorum"}
        channel.queue_declare(QUEUE, durable=True, arguments=arguments, callback=self._begin)

    def _begin(self, _: object) -> None:
        self.channel.confirm_delivery(self._on_confirm)
        self.started = time.perf_counter()
        self._send()

    def _send(self) -> None:
        while self.sent < self.count and self.sent - self.confirmed < WINDOW:
            self.sent += 1
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"m-{self.sent}")
            self.channel.basic_publish("", QUEUE, BODY, properties, mandatory=True)

    def _on_confirm(self, frame: Any) -> None:
        self.confirmed = frame.method.delivery_tag if frame.method.multiple else self.confirmed + 1
        if self.confirmed >= self.count:
            self.seconds = time.perf_counter() - self.started
            self.loop.stop()
        else:
            self._send()


def main(url: str, count: int) -> None:
    loop = uvloop.new_event_loop()
    publisher = RawPublisher(loop, url, count)
    loop.run_forever()
    print(json.dumps({"rate": count / publisher.seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""A reader of the stream of events, written with pika alone, as any consumer of CloudEvents would be."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pika
from pika.exceptions import AMQPError

from tests.support.amqp import open_connection
from tests.support.installation import POLICIES

WITH_EVENTS = f"{POLICIES}\n[events]\nenabled = true\n"
STREAM = "retry.events.stream"
ATTRIBUTE = "cloudEvents:"

Event = dict[str, Any]


def event_of(properties: pika.BasicProperties, body: bytes) -> Event:
    """The attributes, and `data`."""
    headers: Any = properties.headers or {}
    about = {name.removeprefix(ATTRIBUTE): of for name, of in headers.items() if name.startswith(ATTRIBUTE)}
    return about | {"data": json.loads(body)}


@dataclass
class StreamReader:
    """Reads all events of a stream, and goes on where it was after a broker restart."""

    amqp_url: str
    events: list[Event] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    """When each event arrived: `time.monotonic()`."""
    _next: int = 0
    _ending: threading.Event = field(default_factory=threading.Event)

    def words(self, message_id: str) -> list[str]:
        """The short types of the events about one message, in order."""
        return [one["type"].rpartition(".")[2] for one in self.events if one["data"].get("message_id") == message_id]

    @property
    def ids(self) -> set[str]:
        return {one["id"] for one in self.events}

    def run(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(AMQPError, OSError):
                self._read()
            self._ending.wait(0.2)

    def _read(self) -> None:
        with open_connection(self.amqp_url) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=2_000)
            channel.basic_consume(STREAM, self._on_event, arguments={"x-stream-offset": self._next})
            while not self._ending.is_set():
                connection.process_data_events(0.1)

    def _on_event(self, channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        headers: Any = properties.headers
        offset = int(headers["x-stream-offset"])
        if offset >= self._next:
            self._next = offset + 1
            self.events.append(event_of(properties, body))
            self.arrived.append(time.monotonic())
        channel.basic_ack(method.delivery_tag, multiple=True)


@contextlib.contextmanager
def reading_stream(amqp_url: str) -> Iterator[StreamReader]:
    reader = StreamReader(amqp_url)
    thread = threading.Thread(target=reader.run, name="stream reader")
    thread.start()
    try:
        yield reader
    finally:
        reader._ending.set()
        thread.join()

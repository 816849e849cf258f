"""A consumer that uses nothing of tarry but its headers, and records every delivery."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic

from tests.support.amqp import open_connection


@dataclass(frozen=True)
class Seen:
    """One delivery."""

    message_id: str
    round: int
    due_ms: int
    at_ms: int
    headers: Mapping[str, object]


def left_held_queue(delivery: Seen, label: str) -> datetime:
    """The second in which it left the held queue of a destination, from the broker's x-death header."""
    deaths = delivery.headers["x-death"]
    assert isinstance(deaths, list)
    [time_] = [death["time"] for death in deaths if death["queue"] == f"retry.held.{label}"]
    assert isinstance(time_, datetime)
    return time_


@dataclass
class Witness:
    """Acknowledges every message of one queue, on a thread; or rejects it, with `rejects`.

    While `hangs` is true it takes messages and settles none; it settles them when `hangs` is false again.
    """

    amqp_url: str
    queue: str
    rejects: bool = False
    hangs: bool = False
    seen: list[Seen] = field(default_factory=list)
    _unsettled: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def rounds(self) -> dict[str, list[int]]:
        """The rounds in which each message id was delivered."""
        found: dict[str, list[int]] = defaultdict(list)
        for delivery in list(self.seen):
            found[delivery.message_id].append(delivery.round)
        return found

    def _watch(self) -> None:
        with open_connection(self.amqp_url) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=500)
            channel.basic_consume(self.queue, self._take)
            while not self._stop.is_set():
                connection.process_data_events(0.1)
                self._settle(channel)

    def _take(
        self, channel: BlockingChannel, method: Basic.Deliver, properties: pika.BasicProperties, _body: bytes
    ) -> None:
        headers = dict(properties.headers or {})
        now = time.time_ns() // 1_000_000
        round_, due = (int(str(headers.get(name, 0))) for name in ("tarry-round", "tarry-due-ms"))
        self.seen.append(Seen(str(properties.message_id), round_, due, now, headers))
        assert method.delivery_tag is not None
        self._unsettled.append(method.delivery_tag)
        self._settle(channel)

    def _settle(self, channel: BlockingChannel) -> None:
        while self._unsettled and not self.hangs:
            tag = self._unsettled.pop(0)
            if self.rejects:
                channel.basic_reject(tag, requeue=False)
            else:
                channel.basic_ack(tag)

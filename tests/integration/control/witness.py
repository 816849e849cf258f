"""A consumer of its own that knows nothing of tarry but the headers: what it saw is what happened."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic

from tests.harness.amqp import open_connection


@dataclass(frozen=True)
class Seen:
    """One delivery."""

    message_id: str
    round: int
    due_ms: int
    at_ms: int
    headers: Mapping[str, object]


@dataclass
class Witness:
    """Takes and acknowledges everything that comes to one queue, on a thread of its own; or rejects it, if told to.

    While it hangs, it takes what comes and answers nothing; what it has is answered when `hangs` is false again.
    """

    amqp_url: str
    queue: str
    rejects: bool = False
    hangs: bool = False
    seen: list[Seen] = field(default_factory=list)
    _unanswered: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def rounds(self) -> dict[str, list[int]]:
        """For each message id, the rounds in which it came."""
        found: dict[str, list[int]] = defaultdict(list)
        for one in list(self.seen):
            found[one.message_id].append(one.round)
        return found

    def _watch(self) -> None:
        with open_connection(self.amqp_url) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=500)
            channel.basic_consume(self.queue, self._take)
            while not self._stop.is_set():
                connection.process_data_events(0.1)
                self._answer(channel)

    def _take(
        self, channel: BlockingChannel, method: Basic.Deliver, properties: pika.BasicProperties, _body: bytes
    ) -> None:
        headers = dict(properties.headers or {})
        now = time.time_ns() // 1_000_000
        round_, due = (int(str(headers.get(name, 0))) for name in ("tarry-round", "tarry-due-ms"))
        self.seen.append(Seen(str(properties.message_id), round_, due, now, headers))
        assert method.delivery_tag is not None
        self._unanswered.append(method.delivery_tag)
        self._answer(channel)

    def _answer(self, channel: BlockingChannel) -> None:
        while self._unanswered and not self.hangs:
            tag = self._unanswered.pop(0)
            if self.rejects:
                channel.basic_reject(tag, requeue=False)
            else:
                channel.basic_ack(tag)

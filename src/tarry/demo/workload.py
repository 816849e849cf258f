"""The sample workload: invoices, and a worker that fails some once, some always and some finally.

The worker is like a user's own: plain pika, no tarry code. It rejects a message that failed, and marks a final failure
with a header.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pika

from tarry.amqp.declare import connect
from tarry.amqp.url import Address

QUEUE = "demo.invoices"
PACE = 0.08
"""Seconds between two invoices."""

PLAN = {"fine": 20, "fails once": 24, "fails always": 6, "is broken": 4}
"""How many invoices of each kind."""


@dataclass(slots=True)
class Tally:
    """What the worker has seen."""

    sent: int = 0
    done: int = 0
    by_attempt: Counter[int] = field(default_factory=Counter)
    """Successes by the attempt that succeeded; 0 is the first delivery."""
    rejected: int = 0


def expected_done() -> int:
    return PLAN["fine"] + PLAN["fails once"]


def expected_in_review() -> int:
    return PLAN["fails always"] + PLAN["is broken"]


def declare_queue(address: Address) -> None:
    """Declares the user's own queue, without any setting for tarry."""
    connection = connect(address, "demo: declare")
    try:
        connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    finally:
        connection.close()


class Workload:
    """A producer and a worker, each in its own thread."""

    def __init__(self, address: Address, scheduled: str) -> None:
        self.tally = Tally()
        self._address = address
        self._scheduled = scheduled
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._work)]
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        connection = connect(self._address, "demo: producer")
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            for number, kind in enumerate(_kinds(), start=1):
                properties = pika.BasicProperties(message_id=f"invoice-{number:03}", delivery_mode=2, type=kind)
                channel.basic_publish("", QUEUE, f"invoice {number}: {kind}".encode(), properties)
                self.tally.sent += 1
                if self._stop.wait(PACE):
                    return
        finally:
            connection.close()

    def _work(self) -> None:
        try:
            connection = connect(self._address, "demo: worker")
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            channel.basic_consume(QUEUE, self._handle)
            while not self._stop.is_set():
                connection.process_data_events(time_limit=0.1)
            connection.close()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that displays the demo
            self.error = error

    def _handle(self, channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        """Acknowledges, rejects, or reports a final failure."""
        attempt = int(str((properties.headers or {}).get("tarry-count", 0)).rstrip("L"))
        kind = properties.type
        if kind == "is broken":
            final = pika.BasicProperties(
                message_id=properties.message_id,
                delivery_mode=2,
                headers={"original_queue": QUEUE, "error_class": "final", "error_reason": "no such customer"},
            )
            channel.basic_publish("", self._scheduled, body, final)
            channel.basic_ack(method.delivery_tag)
        elif kind == "fails always" or (kind == "fails once" and attempt == 0):
            channel.basic_reject(method.delivery_tag, requeue=False)
            self.tally.rejected += 1
        else:
            channel.basic_ack(method.delivery_tag)
            self.tally.done += 1
            self.tally.by_attempt[attempt] += 1


def _kinds() -> Iterator[str]:
    """All kinds, evenly mixed and always in the same order: the kind that is furthest behind its share comes next."""
    left = dict(PLAN)
    for _ in range(sum(PLAN.values())):
        kind = max(left, key=lambda name: left[name] / PLAN[name])
        left[kind] -= 1
        yield kind

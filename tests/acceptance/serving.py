"""The real process for a whole story: `tarry serve` on the shipped topology, with its clock running faster."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tarry.broker.address import Address
from tarry.topology.apply import apply
from tarry.topology.load import load, shipped
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for

REVIEW = "manual-review.pending"
SERVE = [sys.executable, "-m", "tarry", "serve"]
LATE_MS = 5_000
"""What the invoice platform allows; on an idle machine it is a few milliseconds."""


@dataclass(frozen=True)
class Arrival:
    """A message as its consumer saw it."""

    at_ms: float
    body: bytes
    headers: dict[str, Any]
    properties: pika.BasicProperties
    key: str
    tag: int

    @property
    def due_ms(self) -> int:
        return int(self.headers["tarry-due-ms"])

    def assert_on_time(self) -> None:
        assert self.at_ms >= self.due_ms, f"early by {self.due_ms - self.at_ms:.1f} ms"
        assert self.at_ms - self.due_ms < LATE_MS


@dataclass
class Stage:
    """A service at work, and a channel beside it to play everybody else."""

    process: subprocess.Popen[bytes]
    log: Path
    channel: BlockingChannel
    dsn: str
    seen: list[Arrival] = field(default_factory=list)

    def queue(self, name: str) -> str:
        """A work queue that dead-letters to tarry, as `tarry attach` would make it."""
        arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "retry.intake"}
        self.channel.queue_declare(name, durable=True, arguments=arguments)
        return name

    def work(self, queue: str, message_id: str, body: bytes = b"work", **headers: Any) -> None:
        """A message for a worker."""
        about = pika.BasicProperties(delivery_mode=2, message_id=message_id, headers=headers)
        self.channel.basic_publish("", queue, body, about, mandatory=True)

    def request(
        self, body: bytes, content_type: str | None = None, message_id: str | None = None, **headers: Any
    ) -> None:
        """A request, published as a service would."""
        about = pika.BasicProperties(delivery_mode=2, content_type=content_type, message_id=message_id, headers=headers)
        self.channel.basic_publish("", "retry.scheduled", body, about, mandatory=True)

    def arrival(self, queue: str, deadline: float = 30) -> Arrival:
        """The next message of a queue, not yet settled."""
        return wait_for(lambda: self._get(queue), deadline=deadline, what=f"a message in {queue}")  # type: ignore[return-value]

    def _get(self, queue: str) -> Arrival | None:
        method, properties, body = self.channel.basic_get(queue)
        if method is None or properties is None:
            return None
        now = time.time_ns() / 1e6
        headers: Any = properties.headers or {}
        found = Arrival(now, body or b"", headers, properties, str(method.routing_key), method.delivery_tag or 0)
        self.seen.append(found)
        return found

    def reject(self, arrival: Arrival) -> None:
        self.channel.basic_reject(arrival.tag, requeue=False)

    def ack(self, arrival: Arrival) -> None:
        self.channel.basic_ack(arrival.tag)

    def reviewed(self) -> Arrival:
        """The next that a person is asked about, taken."""
        found = self.arrival(REVIEW)
        self.ack(found)
        return found

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def follow(self, queue: str, first: Arrival) -> list[Arrival]:
        """Reject a message each time it comes, until a person is asked; every return must be on time."""
        returns: list[Arrival] = []
        arrival = first
        while True:
            self.reject(arrival)
            found = wait_for(lambda: self._get(queue) or self._get(REVIEW), deadline=60, what="a return or a review")
            assert found is not None
            arrival = found
            if "review_reason" in arrival.headers:
                self.ack(arrival)
                return returns
            arrival.assert_on_time()
            returns.append(arrival)

    def actions(self, event: str, message_id: str | None = None) -> list[dict[str, Any]]:
        """What the service has logged, one line for each action."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        found = [line for line in lines if line.get("event") == event]
        return [line for line in found if message_id is None or line.get("message_id") == message_id]

    def delays(self, message_id: str) -> list[int]:
        return [line["delay_ms"] for line in self.actions("scheduled", message_id)]

    @cached_property
    def port(self) -> int:
        started = wait_for(lambda: self.actions("started"), deadline=120, what="the service to say where it listens")
        return int(started[0]["http"].rpartition(":")[2])

    def metric(self, name: str) -> float:
        """The sum over all labels."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3_000:]
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=30) as answer:
                return bool(json.loads(answer.read())["status"] == "ready")
        except URLError:
            return False


@contextmanager
def serving(
    vhost: Vhost,
    database: Database,
    folder: Path,
    *,
    scale: float = 1.0,
    granularity: str = "125ms",
    destinations: tuple[str, ...] = ("*",),
    environment: dict[str, str] | None = None,
) -> Iterator[Stage]:
    """`tarry serve`, ready. It must be the same process at the end, and end well when it is told to."""
    topology = _topology(folder / "topology", scale, granularity, destinations)
    settings = {
        "RABBITMQ_URL": vhost.amqp_url,
        "RABBITMQ_MANAGEMENT_URL": vhost.management_url,
        "DATABASE_URL": database.dsn,
        "TARRY_TOPOLOGY": str(topology),
        "TARRY_LOG": "json",
        "HTTP_PORT": "0",
        **(environment or {}),
    }
    apply(load(topology), Address.parse(vhost.amqp_url, management_url=vhost.management_url))
    log = folder / "serve.log"
    with (
        log.open("wb") as written,
        subprocess.Popen(
            [sys.executable, "-m", "tarry", "serve"], env=os.environ | settings, stderr=written
        ) as process,
    ):
        try:
            with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                stage = Stage(process, log, channel, database.dsn)
                wait_for(stage.is_ready, deadline=120, what="tarry serve to be ready")
                yield stage
                assert process.poll() is None, f"the service ended by itself:\n{log.read_text()[-3_000:]}"
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0


def _topology(folder: Path, scale: float, granularity: str, destinations: tuple[str, ...]) -> Path:
    """A copy of the shipped one, with another clock."""
    shutil.copytree(shipped(), folder)
    main = folder / "tarry.toml"
    text = re.sub(r"(?m)^destinations = .*$", f"destinations = {json.dumps(destinations)}", main.read_text())
    text = re.sub(r"(?m)^granularity = .*$", f'granularity = "{granularity}"', text)
    main.write_text(f"time_scale = {scale}\n{text}")
    return folder


def assert_within(found: list[int], least: list[int], jitter: list[int]) -> None:
    """Each delay is its policy's, plus jitter up to its limit and a granule of rounding."""
    assert len(found) == len(least), found
    for delay, base, most in zip(found, least, jitter, strict=True):
        assert base <= delay <= base + most, f"{found} for {least} with jitter up to {jitter}"

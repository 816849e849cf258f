"""`tarry serve` on a copy of the shipped topology, with shorter delays."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tarry.topology.load import shipped
from tests.support.cli import run_cli
from tests.support.installation import Installation
from tests.support.router import Router, start_router
from tests.support.services import Services
from tests.support.spaces import (
    Database,
    SharedBroker,
    Vhost,
    drop_database,
    drop_vhost,
    make_database,
    make_vhost,
)
from tests.support.waiting import wait_for

REVIEW = "manual-review.pending"
LATE_MS = 30_000
"""Generous, for a busy machine. Benchmarks measure the drift on a quiet one (a few milliseconds)."""


@dataclass(frozen=True)
class Arrival:
    """A message as its consumer got it."""

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
class ShippedService:
    """A running service on the shipped topology. Tests act as its producers and consumers."""

    installation: Installation
    router: Router
    seen: list[Arrival] = field(default_factory=list)

    @property
    def channel(self) -> BlockingChannel:
        return self.installation.channel

    @property
    def environment(self) -> dict[str, str]:
        return self.installation.environment

    def tarry(self, *arguments: str) -> str:
        """The output of a command, which must succeed."""
        done = run_cli(arguments, self.environment)
        assert done.exit_code == 0, f"tarry {' '.join(arguments)}\n{done.output}"
        return done.stdout

    def metric(self, name: str, **labels: str) -> float:
        return self.router.metric(name, **labels)

    def depth(self, queue: str) -> int:
        return self.installation.depth(queue)

    def queue(self, name: str) -> str:
        """Declares a work queue that dead-letters to tarry, as `tarry attach` configures it."""
        arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "retry.intake"}
        self.channel.queue_declare(name, durable=True, arguments=arguments)
        return name

    def work(self, queue: str, message_id: str, body: bytes = b"work", **headers: Any) -> None:
        """Publishes a message for a worker."""
        about = pika.BasicProperties(delivery_mode=2, message_id=message_id, headers=headers)
        self.channel.basic_publish("", queue, body, about, mandatory=True)

    def request(
        self, body: bytes, content_type: str | None = None, message_id: str | None = None, **headers: Any
    ) -> None:
        """Publishes a request, as a service does."""
        about = pika.BasicProperties(delivery_mode=2, content_type=content_type, message_id=message_id, headers=headers)
        self.channel.basic_publish("", "retry.scheduled", body, about, mandatory=True)

    def arrival(self, *queues: str, deadline: float = 60) -> Arrival:
        """The next message of these queues; it is not acknowledged."""

        def found() -> Arrival | None:
            return next(filter(None, map(self._get, queues)), None)

        return wait_for(found, deadline=deadline, what=f"a message in {' or '.join(queues)}")  # type: ignore[return-value]

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
        """The next message in review, acknowledged."""
        found = self.arrival(REVIEW)
        self.ack(found)
        return found

    def follow(self, queue: str, first: Arrival) -> list[Arrival]:
        """Rejects a message each time it arrives, until it is in review; every return must be on time."""
        returns: list[Arrival] = []
        arrival = first
        while True:
            self.reject(arrival)
            arrival = self.arrival(queue, REVIEW)
            if "review_reason" in arrival.headers:
                self.ack(arrival)
                return returns
            arrival.assert_on_time()
            returns.append(arrival)

    def actions(self, event: str, message_id: str | None = None) -> list[dict[str, Any]]:
        """The log lines with this event."""
        found = [line for line in self.router.lines() if line["event"] == event]
        return [line for line in found if message_id is None or line.get("message_id") == message_id]

    def scheduled(self, message_id: str, count: int) -> list[dict[str, Any]]:
        """The log lines about a message's retries. A message may return before its line is written."""
        wait_for(lambda: len(self.actions("scheduled", message_id)) >= count, what=f"{count} lines of {message_id}")
        return self.actions("scheduled", message_id)

    def delays(self, message_id: str, count: int) -> list[int]:
        return [line["delay_ms"] for line in self.scheduled(message_id, count)]


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
) -> Iterator[ShippedService]:
    """`tarry serve`, ready. It must run until the end of the block, and then end without an error on SIGTERM."""
    topology = copy_of_the_shipped_topology(folder / "topology", scale, granularity, destinations)
    with closing(Installation(vhost.amqp_url, vhost.management_url, database.dsn, topology)) as installation:
        router = start_router(installation.apply(), **(environment or {}))
        try:
            yield ShippedService(installation, router.wait_ready())
            assert router.running, f"the service ended by itself:\n{router.log.read_text()[-3_000:]}"
        finally:
            router.process.terminate()
        assert router.process.wait(timeout=60) == 0


@contextmanager
def serving_a_file(
    broker: SharedBroker, services: Services, folder: Path, scale: float, environment: dict[str, str] | None = None
) -> Iterator[ShippedService]:
    """A service on a new vhost and a new database, for the tests of a file to share."""
    vhost = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    database = make_database(services.postgres())
    try:
        with serving(vhost, database, folder, scale=scale, environment=environment) as service:
            yield service
    finally:
        drop_vhost(vhost)
        drop_database(services.postgres(), database)


def copy_of_the_shipped_topology(
    folder: Path, scale: float, granularity: str = "125ms", destinations: tuple[str, ...] = ("*",)
) -> Path:
    """The shipped topology with other delays and destinations."""
    shutil.copytree(shipped(), folder)
    main = folder / "tarry.toml"
    text = re.sub(r"(?m)^destinations = .*$", f"destinations = {json.dumps(destinations)}", main.read_text())
    text = re.sub(r"(?m)^granularity = .*$", f'granularity = "{granularity}"', text)
    main.write_text(f"time_scale = {scale}\n{text}")
    return folder


def assert_within(found: list[int], least: list[int], jitter: list[int]) -> None:
    """Each delay is that of the policy, plus jitter up to its limit and one granule of rounding."""
    assert len(found) == len(least), found
    for delay, base, most in zip(found, least, jitter, strict=True):
        assert base <= delay <= base + most, f"{found} for {least} with jitter up to {jitter}"

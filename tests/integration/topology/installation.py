"""A vhost with a given topology, and what tests of the topology do with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pika
import pika.spec
from pika.adapters.blocking_connection import BlockingChannel
from typer.testing import Result

from tarry.amqp.declare import channel
from tarry.amqp.url import Address
from tarry.core.ladder import itinerary
from tarry.core.names import Destination, Names, id_key
from tarry.topology.apply import apply, declare
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.model import Topology
from tests.support.cli import run_cli
from tests.support.installation import BrokerClient
from tests.support.spaces import Vhost


def small_topology(**changes: Any) -> Topology:
    """The shipped ladder and few tiers, so that there is less to declare."""
    policy = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}
    return Topology.model_validate({"policy": [policy]} | changes)


class TopologyInstallation(BrokerClient):
    """A vhost and the topology that `apply` declares on it. It has no database and no topology folder."""

    def __init__(self, vhost: Vhost, topology: Topology | None = None) -> None:
        super().__init__(vhost.amqp_url, vhost.management_url)
        self.vhost = vhost
        self.topology = topology or small_topology()

    @property
    def names(self) -> Names:
        return self.topology.broker_names

    def apply(self) -> Self:
        apply(self.topology, self.address)
        return self

    @contextmanager
    def open_channel(self) -> Iterator[BlockingChannel]:
        """As the commands open it: errors of the broker are explained."""
        with channel(self.address, "test") as opened:
            yield opened

    def attach(self, opened: BlockingChannel, queue: str, **arguments: object) -> None:
        """Declares the queue, its binding for returns and its relay."""
        opened.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **arguments})
        declare(opened, destination_blueprint(self.names, Destination("queue", queue)))

    def schedule(self, opened: BlockingChannel, queue: str, delay_ms: int, body: bytes = b"x", **about: Any) -> None:
        """Publishes as the router does: the itinerary is in BCC, the routing key is unchanged."""
        self.send(opened, queue, self.way(delay_ms), body, **about)

    def send(self, opened: BlockingChannel, queue: str, keys: tuple[str, ...], body: bytes, **about: Any) -> None:
        addresses = [*keys, id_key("6f1c", 1), Destination("queue", queue).key]
        headers = {**about.pop("headers", {}), "BCC": addresses}
        properties = pika.BasicProperties(headers=headers, delivery_mode=2, **about)
        opened.basic_publish(self.names.delay, "own.routing.key", body, properties, mandatory=True)

    def way(self, delay_ms: int) -> tuple[str, ...]:
        rules = self.topology.rules
        return itinerary(rules.ladder, delay_ms, rules.tiers).keys


def command(installation: TopologyInstallation | Address, *arguments: str) -> Result:
    """`tarry topology …` against that broker."""
    address = installation if isinstance(installation, Address) else installation.address
    where = ["--url", address.url, "--management-url", address.management_with_login]
    return run_cli(["topology", *arguments, *where])


@dataclass(frozen=True)
class Arrived:
    """A message and the time of its arrival."""

    at: float
    body: bytes
    properties: pika.BasicProperties
    method: pika.spec.Basic.Deliver

    @property
    def number(self) -> int:
        """The number at the beginning of the body."""
        return int(self.body[:-2])


def drained(opened: BlockingChannel, queue: str, count: int, *, deadline: float) -> list[Arrived]:
    """The next `count` messages; fewer if none comes for so many seconds."""
    found: list[Arrived] = []
    for method, properties, body in opened.consume(queue, auto_ack=True, inactivity_timeout=deadline):
        if method is None or properties is None or body is None:
            break
        found.append(Arrived(time.time(), body, properties, method))
        if len(found) == count:
            break
    opened.cancel()
    return found

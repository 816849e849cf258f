"""A vhost with tarry on it, and what tests do to one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pika
import pika.spec
from pika.adapters.blocking_connection import BlockingChannel
from typer.testing import CliRunner, Result

from tarry.broker.address import Address
from tarry.broker.declare import channel
from tarry.cli.topology import app
from tarry.core.ladder import itinerary
from tarry.core.names import Destination, Names, id_key
from tarry.topology.apply import apply, declare
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.model import Topology
from tests.harness.spaces import Vhost


def small_topology(**changes: Any) -> Topology:
    """The shipped ladder and few tiers: what these tests wait for is the broker, not the declaring."""
    policy = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}
    return Topology.model_validate({"policy": [policy]} | changes)


@dataclass
class Installation:
    """A topology on a vhost."""

    vhost: Vhost
    topology: Topology = field(default_factory=small_topology)

    @property
    def address(self) -> Address:
        return Address.parse(self.vhost.amqp_url, management_url=self.vhost.management_url)

    @property
    def names(self) -> Names:
        return self.topology.broker_names

    def apply(self) -> Installation:
        apply(self.topology, self.address)
        return self

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with channel(self.address, "test") as opened:
            yield opened

    def attach(self, opened: BlockingChannel, queue: str, **arguments: object) -> None:
        """A destination with its way home and a relay of its own."""
        opened.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **arguments})
        declare(opened, destination_blueprint(self.names, Destination("queue", queue)))

    def schedule(self, opened: BlockingChannel, queue: str, delay_ms: int, body: bytes = b"x", **about: Any) -> None:
        """As the router does it: the whole way in BCC, the message's own key untouched."""
        self.send(opened, queue, self.way(delay_ms), body, **about)

    def send(self, opened: BlockingChannel, queue: str, keys: tuple[str, ...], body: bytes, **about: Any) -> None:
        addresses = [*keys, id_key("6f1c", 1), Destination("queue", queue).key]
        headers = {**about.pop("headers", {}), "BCC": addresses}
        properties = pika.BasicProperties(headers=headers, delivery_mode=2, **about)
        opened.basic_publish(self.names.delay, "own.routing.key", body, properties, mandatory=True)

    def way(self, delay_ms: int) -> tuple[str, ...]:
        rules = self.topology.rules
        return itinerary(rules.ladder, delay_ms, rules.tiers).keys


def command(installation: Installation | Address, *arguments: str) -> Result:
    """`tarry topology …` against that broker."""
    address = installation if isinstance(installation, Address) else installation.address
    management = address.management.replace("://", f"://{address.management_user}:{address.management_password}@")
    given = [*arguments, "--url", address.url, "--management-url", management]
    return CliRunner().invoke(app, given + (["--ca-file", address.tls.ca_file] if address.tls.ca_file else []))


@dataclass(frozen=True)
class Arrived:
    """A message and the moment it came."""

    at: float
    body: bytes
    properties: pika.BasicProperties
    method: pika.spec.Basic.Deliver

    @property
    def number(self) -> int:
        """What stands at the beginning of the body."""
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

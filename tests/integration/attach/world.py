"""A vhost with a small topology applied, and the few things that tests of attach do to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tarry.attach.listing import Attachment, attachments
from tarry.attach.merge import Options
from tarry.attach.perform import Request, attach
from tarry.attach.plan import AttachPlan
from tarry.attach.survey import Survey, read_survey
from tarry.broker.address import Address
from tarry.broker.declare import channel
from tarry.broker.management import Management
from tarry.topology.apply import apply
from tarry.topology.model import Topology
from tests.harness.waiting import wait_for

SMALL = {
    "ladder": {"levels": 2},
    "policy": [{"name": "default", "schedule": ["1s"], "max_retries": 1}],
}
"""Two tiers' worth of queues: these tests are about what surrounds them."""

Message = tuple[pika.BasicProperties, bytes, str]


@dataclass(frozen=True)
class World:
    topology: Topology
    address: Address
    management: Management
    channel: BlockingChannel

    def declare(self, name: str, kind: str = "quorum", **arguments: Any) -> str:
        """`declare("orders", x_max_length=5)`."""
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **given})
        return name

    def policy(self, name: str, pattern: str, priority: int = 0, **definition: Any) -> None:
        keys = {key.replace("_", "-"): value for key, value in definition.items()}
        self.management.set_policy(name, pattern=pattern, definition=keys, priority=priority, apply_to="queues")

    def attach(
        self, *queues: str, exchanges: tuple[str, ...] = (), probe: bool = True, **options: Any
    ) -> list[AttachPlan]:
        return attach(self.topology, self.address, Request(queues, exchanges, Options(**options), probe))

    def survey(self) -> Survey:
        return read_survey(self.management, self.topology.broker_names)

    def states(self) -> dict[str, Attachment]:
        return {found.destination.name: found for found in attachments(self.survey())}

    def applied_policy(self, queue: str) -> str | None:
        return self.survey().queues[queue].policy

    def everything(self) -> dict[str, set[str]]:
        """All that stands in the vhost, by name; for before and after."""
        live = self.survey().live
        return {
            "queues": set(live.queues),
            "exchanges": set(live.exchanges),
            "bindings": {str(binding) for binding in live.bindings},
            "policies": {
                f"{policy.name} {policy.pattern} {sorted(policy.definition)}" for policy in live.policies or ()
            },
        }

    def publish(self, queue: str, body: bytes = b"work", exchange: str = "", **properties: Any) -> None:
        settled = pika.BasicProperties(delivery_mode=2, **properties)
        self.channel.basic_publish(exchange, queue, body, settled)

    def take(self, queue: str, deadline: float = 30) -> Message:
        """The next message, acknowledged."""
        method, properties, body = self._get(queue, deadline)
        self.channel.basic_ack(method.delivery_tag)
        return properties, body, method.routing_key

    def reject(self, queue: str, *, requeue: bool = False) -> None:
        method, _, _ = self._get(queue, 10.0)
        self.channel.basic_reject(method.delivery_tag, requeue=requeue)

    def _get(self, queue: str, deadline: float) -> Any:
        def found() -> Any:
            method, properties, body = self.channel.basic_get(queue)
            return method and (method, properties, body)

        return wait_for(found, deadline=deadline, what=f"a message in {queue}")

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)


@contextmanager
def a_world(amqp_url: str, management_url: str) -> Iterator[World]:
    topology = Topology.model_validate(SMALL)
    address = Address.parse(amqp_url, management_url=management_url)
    apply(topology, address)
    with channel(address, "test") as open_channel:
        yield World(topology, address, Management(address), open_channel)

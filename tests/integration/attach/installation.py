"""A vhost with a small topology, and what tests of attach do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from typer.testing import Result

from tarry.amqp.management import Management
from tarry.attach.apply import AttachRequest, attach
from tarry.attach.listing import Attachment, attachments
from tarry.attach.merge import MergeOptions
from tarry.attach.plan import AttachPlan
from tarry.attach.snapshot import BrokerSnapshot, read_snapshot
from tests.support.cli import run_cli
from tests.support.installation import Installation
from tests.support.waiting import wait_for

SMALL = """
[ladder]
levels = 2

[[policy]]
name = "default"
schedule = ["1s"]
max_retries = 1
"""
"""Few queues: these tests need no tier."""

Message = tuple[pika.BasicProperties, bytes, str]
Run = Callable[..., Result]


@dataclass
class AttachInstallation(Installation):
    """An installation whose queues are attached. It has no database."""

    policies: str = SMALL

    @cached_property
    def channel(self) -> BlockingChannel:
        """Without publisher confirms: tests publish to queues that refuse messages."""
        return self.connection.channel()

    @property
    def management(self) -> Management:
        return Management(self.address)

    def tarry(self, *arguments: str) -> Result:
        return run_cli(arguments, self.environment)

    def policy(self, name: str, pattern: str, priority: int = 0, **definition: Any) -> None:
        keys = {key.replace("_", "-"): value for key, value in definition.items()}
        self.management.set_policy(name, pattern=pattern, definition=keys, priority=priority, apply_to="queues")

    def attach(
        self, *queues: str, exchanges: tuple[str, ...] = (), probe: bool = True, **options: Any
    ) -> list[AttachPlan]:
        return attach(self.topology, self.address, AttachRequest(queues, exchanges, MergeOptions(**options), probe))

    def snapshot(self) -> BrokerSnapshot:
        return read_snapshot(self.management, self.topology.broker_names)

    def attachments(self) -> dict[str, Attachment]:
        return {found.destination.name: found for found in attachments(self.snapshot())}

    def applied_policy(self, queue: str) -> str | None:
        return self.snapshot().queues[queue].policy

    def everything(self) -> dict[str, set[str]]:
        """The names of all objects in the vhost, to compare before and after."""
        live = self.snapshot().live
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

"""A vhost with tarry's topology and no router: requests stay in `retry.scheduled`, where a test can look at them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
import pika
from pika.adapters.blocking_connection import BlockingChannel

from tarry.broker.address import Address
from tarry.contract.outcome import Outcome, read_report
from tarry.topology.apply import apply
from tarry.topology.load import load
from tests.harness.amqp import let_go
from tests.harness.spaces import Vhost
from tests.harness.waiting import wait_for
from tests.integration.router.serving import QUORUM

QUEUE = "orders"
SMALL = """
[ladder]
levels = 1

[[policy]]
name = "default"
schedule = ["500ms"]
max_retries = 3
"""
"""Nothing here comes as far as a tier, and every tier is a queue to declare and to delete for each test."""


@dataclass(frozen=True)
class Seen:
    """A message, taken out of its queue."""

    body: bytes
    properties: pika.BasicProperties
    exchange: str
    key: str

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


@dataclass
class World:
    vhost: Vhost
    folder: Path
    connection: pika.BlockingConnection = field(init=False)
    channel: BlockingChannel = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "tarry.toml").write_text(SMALL, encoding="utf-8")
        apply(load(self.folder), Address.parse(self.url, management_url=self.vhost.management_url))
        self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.queue_declare(QUEUE, durable=True, arguments=QUORUM)

    @property
    def url(self) -> str:
        return self.vhost.amqp_url

    def publish(self, body: bytes, message_id: str | None = None, exchange: str = "", **about: Any) -> None:
        properties = pika.BasicProperties(delivery_mode=2, message_id=message_id, **about)
        self.channel.basic_publish(exchange, "order.new" if exchange else QUEUE, body, properties, mandatory=True)

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def take(self, queue: str = "retry.scheduled") -> Seen:
        return wait_for(lambda: self._get(queue), what=f"a message in {queue}")  # type: ignore[return-value]

    def _get(self, queue: str) -> Seen | None:
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        if method is None or properties is None:
            return None
        return Seen(body or b"", properties, str(method.exchange), str(method.routing_key))

    def take_all(self, queue: str) -> list[Seen]:
        found: list[Seen] = []
        while (one := self._get(queue)) is not None:
            found.append(one)
        return found

    def take_exactly(self, count: int, queue: str = "retry.scheduled") -> dict[bytes, dict[str, Any]]:
        """The headers of so many messages, by body; read by aio-pika, which decodes doubles as they are."""

        async def take() -> dict[bytes, dict[str, Any]]:
            async with await aio_pika.connect(self.url) as connection:
                found = await (await connection.channel()).get_queue(queue)
                messages = [await found.get(no_ack=True, timeout=30) for _ in range(count)]
            return {message.body: dict(message.headers) for message in messages}

        wait_for(lambda: self.depth(queue) >= count, what=f"{count} messages in {queue}")
        return asyncio.run(take())

    def reported(self, count: int) -> list[Outcome]:
        """So many outcomes, as the tap would get them."""
        found: list[Outcome] = []

        def enough() -> bool:
            found.extend(outcome for seen in self.take_all("retry.audit") for outcome in read_report(seen.body))
            return len(found) >= count

        wait_for(enough, what=f"{count} reported outcomes")
        return found

    def unacked(self, queue: str = QUEUE) -> int:
        return int(self.vhost.api(f"queues/{{vhost}}/{queue}").get("messages_unacknowledged", 0))

    def close(self) -> None:
        let_go(self.connection)

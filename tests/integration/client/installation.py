"""An installation without a router: requests stay in `retry.scheduled`, where tests read them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import aio_pika
import pika

from tarry.contract.outcome import ReportedOutcome, ReportedStart, read_report
from tests.support.installation import Installation
from tests.support.waiting import wait_for

QUEUE = "orders"
SMALL = """
[ladder]
levels = 1

[[policy]]
name = "default"
schedule = ["500ms"]
max_retries = 3
"""
"""One level of the ladder: no message reaches a tier, and each tier is a queue to declare and delete."""


@dataclass(frozen=True)
class Seen:
    """A message that was taken from its queue."""

    body: bytes
    properties: pika.BasicProperties
    exchange: str
    key: str

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


@dataclass
class ClientInstallation(Installation):
    """An installation with the queue `orders` and without router and database."""

    policies: str = SMALL
    starts: list[ReportedStart] = field(default_factory=list)

    def publish(
        self, body: bytes, message_id: str | None = None, exchange: str = "", queue: str = QUEUE, **about: Any
    ) -> None:
        properties = pika.BasicProperties(delivery_mode=2, message_id=message_id, **about)
        self.channel.basic_publish(exchange, "order.new" if exchange else queue, body, properties, mandatory=True)

    def take(self, queue: str = "retry.scheduled") -> Seen:
        return wait_for(lambda: self._get_seen(queue), what=f"a message in {queue}")  # type: ignore[return-value]

    def _get_seen(self, queue: str) -> Seen | None:
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        if method is None or properties is None:
            return None
        return Seen(body or b"", properties, str(method.exchange), str(method.routing_key))

    def take_all(self, queue: str) -> list[Seen]:
        found: list[Seen] = []
        while (message := self._get_seen(queue)) is not None:
            found.append(message)
        return found

    def take_exactly(self, count: int, queue: str = "retry.scheduled") -> dict[bytes, dict[str, Any]]:
        """The headers of `count` messages, by body; read by aio-pika, which decodes doubles exactly."""

        async def take() -> dict[bytes, dict[str, Any]]:
            async with await aio_pika.connect(self.amqp_url) as connection:
                found = await (await connection.channel()).get_queue(queue)
                messages = [await found.get(no_ack=True, timeout=30) for _ in range(count)]
            return {message.body: dict(message.headers) for message in messages}

        wait_for(lambda: self.depth(queue) >= count, what=f"{count} messages in {queue}")
        return asyncio.run(take())

    def reported(self, count: int) -> list[ReportedOutcome]:
        """The next `count` reported successes, read as the tap does. Starts are kept in `starts`."""
        found: list[ReportedOutcome] = []

        def enough() -> bool:
            for seen in self.take_all("retry.audit"):
                report = read_report(seen.body)
                self.starts += report.starts
                found.extend(report.outcomes)
            return len(found) >= count

        wait_for(enough, what=f"{count} reported outcomes")
        return found

    def started(self, count: int) -> list[ReportedStart]:
        """So many starts."""

        def enough() -> bool:
            self.reported(0)
            return len(self.starts) >= count

        wait_for(enough, what=f"{count} reported starts")
        return self.starts

    def unacked(self, queue: str = QUEUE) -> int:
        return int(self.api(f"queues/{{vhost}}/{queue}").get("messages_unacknowledged", 0))

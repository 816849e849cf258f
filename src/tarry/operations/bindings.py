"""Creates and removes bindings, one at a time and confirmed by the broker, on its own connection, opened on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pika.channel import Channel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.amqp.connection import AmqpConnection, describe_error
from tarry.amqp.declare import NOT_FOUND, refusal
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError, MissingOnBrokerError
from tarry.topology.model import Topology
from tarry.topology.objects import Queue
from tarry.topology.partial import NamesOnly
from tarry.topology.rights import known_router_rights

Ask = Callable[[Channel, Callable[[Any], None]], object]


class Bindings:
    """Runs one request at a time: the broker replies in order, and closes the channel at the first error."""

    def __init__(self, files: Topology | NamesOnly, address: Address) -> None:
        self.files = files
        self._address = address
        self._link: AmqpConnection | None = None
        self._lock = asyncio.Lock()

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        await self._ask(lambda channel, done: channel.queue_bind(queue, exchange, key, callback=done))

    async def unbind(self, queue: str, exchange: str, key: str) -> None:
        """A binding that does not exist is not an error."""
        await self._ask(lambda channel, done: channel.queue_unbind(queue, exchange, key, callback=done))

    async def declare(self, queue: Queue) -> None:
        arguments = queue.arguments.as_dict()
        await self._ask(
            lambda channel, done: channel.queue_declare(queue.name, durable=True, arguments=arguments, callback=done)
        )

    async def depth(self, queue: str) -> int:
        """The number of messages that are ready in the queue now."""
        ready, _ = await self.counts(queue)
        return ready

    async def counts(self, queue: str) -> tuple[int, int]:
        """The number of messages that are ready in the queue now, and the number of its consumers."""
        found: list[tuple[int, int]] = []

        def ask(channel: Channel, done: Callable[[Any], None]) -> None:
            def declared(answer: Any) -> None:
                found.append((int(answer.method.message_count), int(answer.method.consumer_count)))
                done(answer)

            channel.queue_declare(queue, passive=True, callback=declared)

        await self._ask(ask)
        return found[-1]

    async def version(self) -> tuple[int, ...]:
        """The broker's version from its server properties, such as `(3, 10, 8)`."""
        async with self._lock:
            link = await self._ready()
        text = str((link.connection.server_properties or {}).get("version", "")).partition("-")[0].partition("+")[0]
        return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _ask(self, ask: Ask) -> None:
        """Repeats the request once on a new connection if the connection was lost: all requests here are idempotent."""
        async with self._lock:
            try:
                await self._once(ask)
            except BrokerUnreachableError:
                await self._once(ask)

    async def _once(self, ask: Ask) -> None:
        link = await self._ready()
        try:
            await link.answer(lambda done: ask(link.channel, done))
        except ChannelClosedByBroker as closed:
            raise self._refused(closed) from closed
        except AMQPError as error:
            await link.close()
            raise BrokerUnreachableError(
                f"The connection to {self._address} ended: {describe_error(error)}."
            ) from error
        except BrokerUnreachableError:
            await link.close()
            raise

    def _refused(self, closed: ChannelClosedByBroker) -> BrokerError:
        error = refusal(self._address, closed.reply_code, closed.reply_text, known_router_rights(self.files))
        return MissingOnBrokerError(str(error)) if closed.reply_code == NOT_FOUND else error

    async def _ready(self) -> AmqpConnection:
        if self._link is None or self._link.closed.done() or self._link.connection.is_closed:
            self._link = await AmqpConnection.open(self._address, "operator: bind")
        elif not self._link.channel.is_open:
            await self._link.reopen_channel()
        return self._link

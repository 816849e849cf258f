"""One consumer on each kind of connection, bare and with tarry's client in turns: everything succeeds.

The turns are blocks of messages on one and the same connection, so that both are disturbed alike by whatever else runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aio_pika
import pika
from aio_pika.abc import AbstractIncomingMessage

from tarry.client.aio_pika import Retries as AioRetries
from tarry.client.pika import CallbackRetries, Retries

PREFETCH = 100
BLOCK = 400
"""Messages in a turn: two whole reports."""


class Turns:
    """Whose turn it is, and what each turn cost in processor time; calls `done` after the last."""

    def __init__(self, messages: int, done: Callable[[], None]) -> None:
        self._left, self._done = messages, done
        self._seen, self._began = 0, 0.0
        self.clients_turn = False
        self.bare: list[float] = []
        self.client: list[float] = []

    def one(self) -> None:
        """Called by the handler, which is otherwise idle."""
        self._seen += 1
        if self._seen % BLOCK == 0:
            now = time.process_time()
            (self.client if self.clients_turn else self.bare).append((now - self._began) / BLOCK * 1e6)
            self._began, self.clients_turn = now, not self.clients_turn
        if self._seen == self._left:
            self._done()


def blocking(url: str, queue: str, messages: int) -> Turns:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        turns = Turns(messages, channel.stop_consuming)
        with Retries(connection) as retries:
            channel.basic_consume(queue, _callback(turns, queue, retries))
            channel.start_consuming()
        return turns


def select(url: str, queue: str, messages: int) -> Turns:
    found: list[Turns] = []

    def on_channel(channel: Any) -> None:
        connection = channel.connection
        found.append(Turns(messages, lambda: connection.ioloop.call_later(0.2, connection.close)))
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(queue, _callback(found[0], queue, CallbackRetries(connection)))

    connection = pika.SelectConnection(
        pika.URLParameters(url),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    return found[0]


def _callback(turns: Turns, queue: str, retries: Any) -> Any:
    def handle(_channel: Any, _method: Any, _properties: pika.BasicProperties, _body: bytes) -> None:
        turns.one()

    def bare(channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        handle(channel, method, properties, body)
        channel.basic_ack(method.delivery_tag)

    client = retries.handler(queue)(handle)

    def either(channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        (client if turns.clients_turn else bare)(channel, method, properties, body)

    return either


def on_aio_pika(url: str, queue: str, messages: int) -> Turns:
    return asyncio.run(_on_aio_pika(url, queue, messages))


async def _on_aio_pika(url: str, queue: str, messages: int) -> Turns:
    async with await aio_pika.connect_robust(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        source = await channel.get_queue(queue)
        done = asyncio.Event()
        turns = Turns(messages, done.set)

        async def handle(_message: AbstractIncomingMessage) -> None:
            turns.one()

        async def bare(message: AbstractIncomingMessage) -> None:
            await handle(message)
            await message.ack()

        async with AioRetries(connection) as retries:
            client = retries.handler(queue)(handle)

            async def either(message: AbstractIncomingMessage) -> None:
                await (client if turns.clients_turn else bare)(message)

            await source.consume(either)
            await done.wait()
            await asyncio.sleep(0.2)
        return turns


CONSUMERS: dict[str, Callable[[str, str, int], Turns]] = {
    "pika, blocking": blocking,
    "pika, callbacks": select,
    "aio-pika": on_aio_pika,
}

"""One consumer for each adapter, all with the same handler: they must behave alike."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import aio_pika
import pika
from aio_pika.abc import AbstractIncomingMessage
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError

from tarry.client import Attempt, MemoryDeduplicator, Options
from tarry.client.aio_pika import Retries as AioRetries
from tarry.client.aio_pika import attempt_of as aio_attempt_of
from tarry.client.pika import CallbackRetries, Retries, attempt_of
from tests.support.amqp import open_connection
from tests.support.waiting import wait_for

Handle = Callable[[Attempt, bytes], None]
PREFETCH = 20


class Consumer(ABC):
    """Runs in a thread of its own, and connects again when it is cut off, as a service does."""

    def __init__(
        self, url: str, queue: str, handle: Handle, options: Options | None = None, *, suppress: bool = False
    ) -> None:
        self.url, self.queue, self.options = url, queue, options
        self.handle, self.suppress = handle, suppress
        """With `suppress`, the handler runs inside the client's deduplicator."""
        self.stopping = threading.Event()
        self.connections = 0
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=f"consumer-{queue}")

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self.connections or self.problem, what="the consumer to connect")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the consumer does not stop"
        assert self.problem is None, f"the consumer ended with {self.problem!r}"

    def stop(self) -> None:
        self.stopping.set()

    def _main(self) -> None:
        try:
            self.run()
        except BaseException as problem:  # noqa: BLE001 - shown by the test's own thread
            self.problem = problem

    @abstractmethod
    def run(self) -> None: ...


class InProcess(Consumer):
    """A client of Python's, in a thread of the test's own process."""

    def __init__(self, *arguments: Any, **how: Any) -> None:
        super().__init__(*arguments, **how)
        self._guard = MemoryDeduplicator()

    def handle_here(self, attempt: Attempt, body: bytes) -> None:
        if not self.suppress:
            self.handle(attempt, body)
            return
        with self._guard.once(attempt) as todo:
            if todo:
                self.handle(attempt, body)


class Blocking(InProcess):
    executor: ThreadPoolExecutor | None = None

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(AMQPError):
                self._once()

    def _once(self) -> None:
        parameters = pika.URLParameters(self.url)
        parameters.socket_timeout = parameters.stack_timeout = 30
        with open_connection(parameters) as connection:
            self._consume(connection)

    def _consume(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        retries = Retries(connection, self.options)

        @retries.handler(self.queue, self.executor)
        def handle(_channel: Any, _method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            self.handle_here(attempt_of(properties, self.queue, body), body)

        channel.basic_consume(self.queue, handle)
        self.connections += 1
        while not self.stopping.is_set():
            connection.process_data_events(time_limit=0.05)
        retries.close()


class Threads(Blocking):
    def run(self) -> None:
        with ThreadPoolExecutor(4) as self.executor:
            super().run()


class Select(InProcess):
    executor: ThreadPoolExecutor | None = None

    def run(self) -> None:
        while not self.stopping.is_set():
            loop = self._connect().ioloop
            loop.start()
            loop.close()

    def _connect(self) -> Any:
        return pika.SelectConnection(
            pika.URLParameters(self.url),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
        )

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        connection = channel.connection
        retries = CallbackRetries(connection, self.options)

        @retries.handler(self.queue, self.executor)
        def handle(_channel: Any, _method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            self.handle_here(attempt_of(properties, self.queue, body), body)

        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(self.queue, handle)
        self.connections += 1
        self._look_for_the_end(connection, retries)

    def _look_for_the_end(self, connection: Any, retries: CallbackRetries) -> None:
        if not connection.is_open:
            return
        if self.stopping.is_set():
            retries.close(connection.close)
            return
        connection.ioloop.call_later(0.05, lambda: self._look_for_the_end(connection, retries))

    def _on_closed(self, connection: Any, _: object) -> None:
        connection.ioloop.stop()


class Asyncio(Select):
    """pika's own adapter for asyncio."""

    def run(self) -> None:
        while not self.stopping.is_set():
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                AsyncioConnection(
                    pika.URLParameters(self.url),
                    on_open_callback=self._on_open,
                    on_open_error_callback=self._on_closed,
                    on_close_callback=self._on_closed,
                    custom_ioloop=loop,
                )
                loop.run_forever()


class AioPika(InProcess):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        connection = await aio_pika.connect_robust(self.url, reconnect_interval=0.05)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(self.queue)
        async with AioRetries(connection, self.options) as retries:

            @retries.handler(self.queue)
            async def handle(message: AbstractIncomingMessage) -> None:
                await self._handle(message)

            await queue.consume(handle)
            self.connections += 1
            while not self.stopping.is_set():  # noqa: ASYNC110 - it is set by another thread
                await asyncio.sleep(0.02)
        await connection.close()

    async def _handle(self, message: AbstractIncomingMessage) -> None:
        self._handle_message(message)

    def _handle_message(self, message: AbstractIncomingMessage) -> None:
        self.handle_here(aio_attempt_of(message, self.queue), message.body)


class SelectThreads(Select):
    def run(self) -> None:
        with ThreadPoolExecutor(4) as self.executor:
            super().run()


class AioThreads(AioPika):
    """Its loop goes on while a handler runs, as it does while a coroutine awaits something."""

    async def _handle(self, message: AbstractIncomingMessage) -> None:
        await asyncio.to_thread(self._handle_message, message)


ADAPTERS: dict[str, type[Consumer]] = {
    "blocking": Blocking,
    "threads": Threads,
    "select": Select,
    "asyncio": Asyncio,
    "aio-pika": AioPika,
}

LONG_SHELLS: dict[str, type[Consumer]] = {
    "blocking": Blocking,
    "threads": Threads,
    "select": SelectThreads,
    "aio-pika": AioThreads,
}
"""Consumers that can report something while a handler runs."""

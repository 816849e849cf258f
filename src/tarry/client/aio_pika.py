"""The adapter for consumers that use aio-pika."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from time import perf_counter
from typing import Self

from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from tarry.amqp.properties import Properties
from tarry.client.aio_pika_publisher import ConfirmedPublisher, NotTakenError
from tarry.client.attempt import Attempt
from tarry.client.options import Options
from tarry.client.outcomes import Outcomes
from tarry.client.request import Incoming
from tarry.client.settle import answer, requeued, unreported, unsettled
from tarry.client.tracing import attempt_span

Handler = Callable[[AbstractIncomingMessage], Awaitable[object]]
Settled = Callable[[AbstractIncomingMessage], Awaitable[None]]


def attempt_of(message: AbstractIncomingMessage, queue: str) -> Attempt:
    """Which attempt this delivery is, how many are allowed, and until when."""
    message_id = message.message_id
    shown = message_id.replace("\x00", "\\x00") if message_id else None
    return Attempt.read(message.headers, queue, shown, message.body)


class Retries:
    """Acknowledges messages that succeeded. For a message that failed, requests a retry and then acknowledges it.

    Publishes on its own channels, on the same connection unless `publishing` is given.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        options: Options | None = None,
        *,
        publishing: AbstractConnection | None = None,
    ) -> None:
        self.options = options or Options()
        self._publisher = ConfirmedPublisher(publishing or connection, self.options.names)
        self._outcomes = Outcomes(self.options, self._flush_soon, self._flush_now)
        self._tasks: set[asyncio.Task[None]] = set()
        self._acknowledging = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def handler(self, queue: str) -> Callable[[Handler], Settled]:
        """Decorates a consumer's callback. The callback must not acknowledge or reject: it returns, or it raises.

        If the callback is cancelled, the message is requeued.
        """

        def decorate(handle: Handler) -> Settled:
            # `handling` is not used here: it would add microseconds to every message that succeeds.
            @wraps(handle)
            async def settled(message: AbstractIncomingMessage) -> None:
                self.started(queue, message)
                started = perf_counter()
                try:
                    with attempt_span(message.headers, queue, message.message_id, message.body):
                        await handle(message)
                except asyncio.CancelledError:
                    await self._give_back(queue, message)
                    raise
                except Exception as error:  # noqa: BLE001 - any exception means that the message failed
                    await self.failed(queue, message, error)
                else:
                    await self.succeeded(queue, message, perf_counter() - started)

            return settled

        return decorate

    @asynccontextmanager
    async def handling(self, queue: str, message: AbstractIncomingMessage) -> AsyncIterator[Attempt]:
        """Settles the message when the block ends. If the block raises, requests a retry and swallows the exception.

        If the block is cancelled, the message is requeued and the cancellation continues.
        """
        self.started(queue, message)
        started = perf_counter()
        try:
            with attempt_span(message.headers, queue, message.message_id, message.body):
                yield attempt_of(message, queue)
        except asyncio.CancelledError:
            await self._give_back(queue, message)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            await self.failed(queue, message, error)
        else:
            await self.succeeded(queue, message, perf_counter() - started)

    def started(self, queue: str, message: AbstractIncomingMessage) -> None:
        """Reports that an attempt begins, if the message was retried before. `handler` and `handling` call it."""
        if self._outcomes.start(message.headers, queue):
            self._outcomes.arm()

    async def succeeded(self, queue: str, message: AbstractIncomingMessage, seconds: float = 0.0) -> None:
        """Acknowledges the message and, if it was retried before, reports the success."""
        self._acknowledging += 1
        try:
            await message.ack()
        except CONNECTION_EXCEPTIONS as error:
            unsettled(queue, error)
        else:
            self._outcomes.add(message.headers, queue, seconds)
        finally:
            self._acknowledging -= 1

    async def failed(self, queue: str, message: AbstractIncomingMessage, error: BaseException) -> None:
        """Requests a retry, and acknowledges the message once the broker has confirmed the request.

        With `Options.plain="reject"`, a failure without class and wait is rejected instead. If the request cannot be
        published, the message is requeued.
        """
        self._outcomes.end(message.headers)
        found = _incoming(queue, message)
        request = answer(found, error, self.options)
        if request is None:
            await self._settle(queue, message.reject(requeue=False))
        else:
            await self._ask(message, found, request)

    async def flush(self) -> None:
        """Sends the pending reports now. Network errors are logged, not raised."""
        report = self._outcomes.take()
        if report is not None:
            try:
                await self._publisher.report(report)
            except NotTakenError as error:
                unreported(error)

    async def close(self) -> None:
        """Sends the pending reports and closes its own channels. The connection stays open."""
        while self._acknowledging:  # noqa: ASYNC110 - a few loop iterations; an event would cost every message more
            await asyncio.sleep(0.001)
        self._outcomes.forget_starts()
        await self.flush()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._publisher.close()

    async def _ask(self, message: AbstractIncomingMessage, found: Incoming, request: Properties) -> None:
        for pause in (*self.options.pauses, None):
            if message.channel.is_closed:  # the message will be redelivered; a request now would be a duplicate
                unsettled(found.queue, "its channel is closed")
                return
            try:
                await self._publisher.request(found.body, request)
            except NotTakenError as refusal:
                if pause is None:
                    requeued(found, refusal)
                    await self._settle(found.queue, message.nack(requeue=True))
                    return
                await asyncio.sleep(pause)
            else:
                await self._settle(found.queue, message.ack())
                return

    async def _give_back(self, queue: str, message: AbstractIncomingMessage) -> None:
        """Requeues the message: the consumer is being stopped, which is not a failure of the message."""
        self._outcomes.end(message.headers)
        await asyncio.shield(self._settle(queue, message.nack(requeue=True)))

    @staticmethod
    async def _settle(queue: str, settling: Awaitable[None]) -> None:
        """Settles the message. If that fails, the channel is closed and the broker delivers the message again."""
        try:
            await settling
        except CONNECTION_EXCEPTIONS as error:
            unsettled(queue, error)

    def _flush_soon(self) -> None:
        asyncio.get_running_loop().call_later(self.options.report_seconds, self._flush_now)

    def _flush_now(self) -> None:
        task = asyncio.ensure_future(self.flush())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _incoming(queue: str, message: AbstractIncomingMessage) -> Incoming:
    return Incoming(
        queue=queue,
        exchange=message.exchange or "",
        routing_key=message.routing_key or "",
        body=message.body,
        headers=message.headers or {},
        properties=_plain(message),
        attempt=attempt_of(message, queue),
    )


def _plain(message: AbstractIncomingMessage) -> Properties:
    return Properties(
        content_type=_raw(message.content_type),
        content_encoding=_raw(message.content_encoding),
        priority=message.priority or None,  # aio-pika turns a missing priority into 0
        correlation_id=_raw(message.correlation_id),
        reply_to=_raw(message.reply_to),
        message_id=_raw(message.message_id),
        timestamp=None if message.timestamp is None else int(message.timestamp.timestamp()),
        type=_raw(message.type),
        user_id=_raw(message.user_id),
        app_id=_raw(message.app_id),
    )


def _raw(value: str | None) -> bytes | None:
    return value.encode() if value else None

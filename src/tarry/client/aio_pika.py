"""The shell for consumers on aio-pika."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from time import perf_counter
from typing import Self

from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from tarry.client.aio_pika_delivery import attempt_of, incoming
from tarry.client.aio_pika_publisher import NotTakenError, Publisher
from tarry.client.attempt import Attempt
from tarry.client.options import Options
from tarry.client.outcomes import Outcomes
from tarry.client.request import Incoming
from tarry.client.settle import answer, requeued, unreported, unsettled
from tarry.contract.properties import Properties

Handler = Callable[[AbstractIncomingMessage], Awaitable[object]]
Settled = Callable[[AbstractIncomingMessage], Awaitable[None]]


class Retries:
    """Acknowledges what succeeded; asks for a retry of what failed, and acknowledges it then.

    Publishes on channels of its own, on the same connection unless it is given another one.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        options: Options | None = None,
        *,
        publishing: AbstractConnection | None = None,
    ) -> None:
        self.options = options or Options()
        self._publisher = Publisher(publishing or connection, self.options.names)
        self._outcomes = Outcomes(self.options, self._flush_soon, self._flush_now)
        self._tasks: set[asyncio.Task[None]] = set()
        self._acknowledging = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def handler(self, queue: str) -> Callable[[Handler], Settled]:
        """Decorates a consumer's callback, which then neither acknowledges nor rejects: it returns, or it raises."""

        def decorate(handle: Handler) -> Settled:
            # Not by `handling`: what a message costs that succeeds is counted in microseconds.
            @wraps(handle)
            async def settled(message: AbstractIncomingMessage) -> None:
                started = perf_counter()
                try:
                    await handle(message)
                except asyncio.CancelledError:
                    await self._give_back(queue, message)
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is, the message failed
                    await self.failed(queue, message, error)
                else:
                    await self.succeeded(queue, message, perf_counter() - started)

            return settled

        return decorate

    @asynccontextmanager
    async def handling(self, queue: str, message: AbstractIncomingMessage) -> AsyncIterator[Attempt]:
        """Settles the message by how the block ends. An exception ends here, once the retry is asked for."""
        started = perf_counter()
        try:
            yield attempt_of(message, queue)
        except asyncio.CancelledError:
            await self._give_back(queue, message)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            await self.failed(queue, message, error)
        else:
            await self.succeeded(queue, message, perf_counter() - started)

    async def succeeded(self, queue: str, message: AbstractIncomingMessage, seconds: float = 0.0) -> None:
        """Acknowledges, and reports it if the message had been retried."""
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
        """Asks for a retry, and acknowledges once the broker has confirmed the request."""
        found = incoming(queue, message)
        request = answer(found, error, self.options)
        if request is None:
            await self._settle(queue, message.reject(requeue=False))
        else:
            await self._ask(message, found, request)

    async def flush(self) -> None:
        """Reports what there is to report, now. Never raises over the network."""
        report = self._outcomes.take()
        if report is not None:
            try:
                await self._publisher.report(report)
            except NotTakenError as error:
                unreported(error)

    async def close(self) -> None:
        """Reports what is left, and closes its channels; the connection stays."""
        while self._acknowledging:  # noqa: ASYNC110 - a few steps of the loop; an event would cost every message more
            await asyncio.sleep(0.001)
        await self.flush()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._publisher.close()

    async def _ask(self, message: AbstractIncomingMessage, found: Incoming, request: Properties) -> None:
        for pause in (*self.options.pauses, None):
            if message.channel.is_closed:  # it will be delivered again, and must not be asked for twice
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
        """The consumer is being stopped; that is no failure of the message's."""
        await asyncio.shield(self._settle(queue, message.nack(requeue=True)))

    @staticmethod
    async def _settle(queue: str, settling: Awaitable[None]) -> None:
        """Where the broker cannot be told, its channel has gone, and it delivers the message again."""
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

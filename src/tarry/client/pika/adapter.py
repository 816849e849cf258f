"""What the adapters for both kinds of pika connection share: when a message is settled, not how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from functools import partial, wraps
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from pika import BasicProperties
from pika.exceptions import AMQPError

from tarry.amqp.properties import Properties
from tarry.client.attempt import Attempt
from tarry.client.options import Options
from tarry.client.outcomes import Outcomes
from tarry.client.pika.delivery import attempt_of, incoming
from tarry.client.request import Incoming
from tarry.client.settle import answer, unsettled
from tarry.client.tracing import attempt_span

Handler = Callable[[Any, Any, BasicProperties, bytes], object]
"""A consumer's callback, as pika calls it: channel, method, properties, body."""

Settled = Callable[[Any, Any, BasicProperties, bytes], None]


class PikaAdapter(ABC):
    """Acknowledges messages that succeeded. For a message that failed, requests a retry and then acknowledges it."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._outcomes = Outcomes(self.options, self._flush_soon, self.flush)
        self._in_threads: set[Future[None]] = set()
        self._handled: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False

    def handler(self, queue: str, executor: Executor | None = None) -> Callable[[Handler], Settled]:
        """Decorates a consumer's callback. The callback must not acknowledge or reject: it returns, or it raises.

        With an executor the callback runs there, and pika is only used from the connection's own thread. Messages
        delivered after `close` are then neither handled nor settled: the broker requeues them when the channel closes.
        """

        def decorate(handle: Handler) -> Settled:
            @wraps(handle)
            def here(channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
                self.started(queue, properties)
                started = perf_counter()
                try:
                    with attempt_span(properties.headers, queue, properties.message_id, body):
                        handle(channel, method, properties, body)
                except Exception as error:  # noqa: BLE001 - any exception means that the message failed
                    self.failed(queue, channel, method, properties, body, error)
                else:
                    channel.basic_ack(method.delivery_tag)
                    self._outcomes.add(properties.headers, queue, perf_counter() - started)

            return here if executor is None else self._elsewhere(queue, executor, handle)

        return decorate

    @contextmanager
    def handling(
        self, queue: str, channel: Any, method: Any, properties: BasicProperties, body: bytes
    ) -> Iterator[Attempt]:
        """Settles the message when the block ends. If the block raises, requests a retry and swallows the exception."""
        self.started(queue, properties)
        started = perf_counter()
        try:
            with attempt_span(properties.headers, queue, properties.message_id, body):
                yield attempt_of(properties, queue, body)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(queue, channel, method, properties, body, error)
        else:
            self.succeeded(queue, channel, method, properties, perf_counter() - started)

    def started(self, queue: str, properties: BasicProperties) -> None:
        """Reports that an attempt begins, if the message was retried before. `handler` and `handling` call it."""
        if self._outcomes.start(properties.headers, queue):
            self._report_start()

    def succeeded(
        self, queue: str, channel: Any, method: Any, properties: BasicProperties, seconds: float = 0.0
    ) -> None:
        """Acknowledges the message and, if it was retried before, reports the success."""
        channel.basic_ack(method.delivery_tag)
        self._outcomes.add(properties.headers, queue, seconds)

    def failed(  # noqa: PLR0917 - pika's four arguments, the queue, and the error
        self, queue: str, channel: Any, method: Any, properties: BasicProperties, body: bytes, error: BaseException
    ) -> None:
        """Requests a retry, and acknowledges the message once the broker has confirmed the request.

        With `Options.plain="reject"`, a failure without class and wait is rejected instead. If the request cannot be
        published, the message is requeued.
        """
        self._outcomes.end(properties.headers)
        found = incoming(queue, method, properties, body)
        request = answer(found, error, self.options)
        if request is None:
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            self._ask(channel, method.delivery_tag, found, request)

    def _elsewhere(self, queue: str, executor: Executor, handle: Handler) -> Settled:
        def work(channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
            started = perf_counter()
            try:
                with attempt_span(properties.headers, queue, properties.message_id, body):
                    handle(channel, method, properties, body)
            except Exception as error:  # noqa: BLE001 - as above
                settle = partial(self.failed, queue, channel, method, properties, body, error)
            else:
                settle = partial(self.succeeded, queue, channel, method, properties, perf_counter() - started)
            self._handled.put(partial(self._settle_if_open, queue, channel, settle))
            try:
                self._from_thread(self._settle_handled)
            except (AMQPError, RuntimeError) as gone:
                unsettled(queue, gone)

        def submit(channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
            if self._closing:
                unsettled(queue, "its consumer is being closed")
                return
            if self._outcomes.start(properties.headers, queue):
                self._outcomes.arm()
            job = executor.submit(work, channel, method, properties, body)
            self._in_threads.add(job)
            job.add_done_callback(self._in_threads.discard)

        return wraps(handle)(submit)

    def _settle_handled(self) -> None:
        """Runs in the connection's own thread. A worker thread adds its result to the queue before its job is done."""
        with suppress(Empty):
            while True:
                self._handled.get_nowait()()

    @staticmethod
    def _settle_if_open(queue: str, channel: Any, settle: Callable[[], None]) -> None:
        """The channel may have closed while a worker thread ran the handler."""
        if channel.is_open:
            settle()
        else:
            unsettled(queue, "its channel is closed")

    @abstractmethod
    def _report_start(self) -> None:
        """Reports a start whose handler runs in the connection's own thread."""

    @abstractmethod
    def flush(self) -> None:
        """Sends the pending reports now. Network errors are logged, not raised."""

    @abstractmethod
    def _flush_soon(self) -> None: ...

    @abstractmethod
    def _ask(self, channel: Any, tag: int, found: Incoming, request: Properties) -> None: ...

    @abstractmethod
    def _from_thread(self, call: Callable[[], None]) -> None:
        """Schedules the call in the connection's own thread."""

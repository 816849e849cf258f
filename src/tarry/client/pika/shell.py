"""What both kinds of pika's connections have in common: when a message is settled, not how."""

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

from tarry.client.attempt import Attempt
from tarry.client.options import Options
from tarry.client.outcomes import Outcomes
from tarry.client.pika.delivery import attempt_of, incoming
from tarry.client.request import Incoming
from tarry.client.settle import answer, unsettled
from tarry.contract.properties import Properties

Handler = Callable[[Any, Any, BasicProperties, bytes], object]
"""A consumer's callback, as pika calls it: channel, method, properties, body."""

Settled = Callable[[Any, Any, BasicProperties, bytes], None]


class Shell(ABC):
    """Acknowledges what succeeded; asks for a retry of what failed, and acknowledges it then."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._outcomes = Outcomes(self.options, self._flush_soon, self.flush)
        self._in_threads: set[Future[None]] = set()
        self._handled: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False

    def handler(self, queue: str, executor: Executor | None = None) -> Callable[[Handler], Settled]:
        """Decorates a consumer's callback, which then neither acknowledges nor rejects: it returns, or it raises.

        With an executor it runs there, and pika is only ever touched from its own thread. What is delivered after
        `close` is then left alone: the broker has it back when the channel closes.
        """

        def decorate(handle: Handler) -> Settled:
            @wraps(handle)
            def here(channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
                started = perf_counter()
                try:
                    handle(channel, method, properties, body)
                except Exception as error:  # noqa: BLE001 - whatever it is, the message failed
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
        """Settles the message by how the block ends. An exception ends here, once the retry is asked for."""
        started = perf_counter()
        try:
            yield attempt_of(properties, queue, body)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(queue, channel, method, properties, body, error)
        else:
            self.succeeded(queue, channel, method, properties, perf_counter() - started)

    def succeeded(
        self, queue: str, channel: Any, method: Any, properties: BasicProperties, seconds: float = 0.0
    ) -> None:
        """Acknowledges, and reports it if the message had been retried."""
        channel.basic_ack(method.delivery_tag)
        self._outcomes.add(properties.headers, queue, seconds)

    def failed(  # noqa: PLR0917 - pika's four, the queue, and the error
        self, queue: str, channel: Any, method: Any, properties: BasicProperties, body: bytes, error: BaseException
    ) -> None:
        """Asks for a retry, and acknowledges once the broker has confirmed the request."""
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
            job = executor.submit(work, channel, method, properties, body)
            self._in_threads.add(job)
            job.add_done_callback(self._in_threads.discard)

        return wraps(handle)(submit)

    def _settle_handled(self) -> None:
        """In the connection's own thread. What a thread puts there is there before its job is done."""
        with suppress(Empty):
            while True:
                self._handled.get_nowait()()

    @staticmethod
    def _settle_if_open(queue: str, channel: Any, settle: Callable[[], None]) -> None:
        """Whoever worked in a thread may find that the channel has gone meanwhile."""
        if channel.is_open:
            settle()
        else:
            unsettled(queue, "its channel is closed")

    @abstractmethod
    def flush(self) -> None:
        """Reports what there is to report, now. Never raises over the network."""

    @abstractmethod
    def _flush_soon(self) -> None: ...

    @abstractmethod
    def _ask(self, channel: Any, tag: int, found: Incoming, request: Properties) -> None: ...

    @abstractmethod
    def _from_thread(self, call: Callable[[], None]) -> None:
        """Has it called in the connection's own thread."""

"""The adapter for pika's callback connections: SelectConnection, AsyncioConnection and similar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pika.channel import Channel
from pika.exceptions import AMQPError

from tarry.amqp.properties import Properties
from tarry.client.options import Options
from tarry.client.outcomes import PROPERTIES
from tarry.client.pika.adapter import PikaAdapter
from tarry.client.pika.confirming import ConfirmingPublisher, Pending
from tarry.client.request import Incoming
from tarry.client.settle import requeued, unreported, unsettled

_LOOK_AGAIN = 0.02
"""Seconds between two checks for pending work during `close`."""


class CallbackRetries(PikaAdapter):
    """Settles messages on a callback connection. Never blocks.

    Bound to one connection: a consumer that reconnects must create a new instance.
    """

    def __init__(self, connection: Any, options: Options | None = None) -> None:
        super().__init__(options)
        self._connection = connection
        self._requests = ConfirmingPublisher(connection, self.options.names.intake)
        self._reports: Channel | None = None

    def close(self, then: Callable[[], None] | None = None) -> None:
        """Sends the pending reports and closes its own channels. The connection stays open.

        `then` is called when everything has been sent and all handlers in threads are settled: close the connection
        there. If the connection is lost before that, `then` is not called.
        """
        self._closing = True
        self._settle_handled()
        if not self._in_threads:
            self._outcomes.forget_starts()
        self.flush()
        if self._connection.is_open and (self._in_threads or self._outcomes or self._requests.is_waiting):
            self._connection.ioloop.call_later(_LOOK_AGAIN, partial(self.close, then))
            return
        self._requests.close()
        if self._reports is not None and self._reports.is_open:
            self._reports.close()
        if then is not None and self._connection.is_open:
            then()

    def flush(self) -> None:
        """Sends the pending reports now, or as soon as a channel is open."""
        if not self._outcomes.is_ready():
            return
        channel: Any = self._reports
        try:
            if channel is None or channel.is_closed:
                self._reports = self._connection.channel(on_open_callback=lambda _: self.flush())
            elif channel.is_open and (report := self._outcomes.take()) is not None:
                channel.basic_publish(self.options.names.reports, "", report, PROPERTIES)
        except AMQPError as error:
            self._outcomes.take()
            unreported(error)

    def _report_start(self) -> None:
        """Later: this kind of connection sends nothing before the handler returns, nor its heartbeats."""
        self._outcomes.arm()

    def _flush_soon(self) -> None:
        self._connection.ioloop.call_later(self.options.report_seconds, self.flush)

    def _ask(self, channel: Any, tag: int, found: Incoming, request: Properties) -> None:
        self._try(channel, tag, found, request, iter(self.options.pauses))

    def _try(self, channel: Any, tag: int, found: Incoming, request: Properties, pauses: Iterator[float]) -> None:
        def answer(why_not: object | None) -> None:
            if not channel.is_open:
                unsettled(found.queue, why_not or "its channel is closed")
            elif why_not is None:
                channel.basic_ack(tag)
            elif (pause := next(pauses, None)) is not None:
                again = partial(self._try, channel, tag, found, request, pauses)
                self._connection.ioloop.call_later(pause, again)
            else:
                requeued(found, why_not)
                channel.basic_nack(tag, requeue=True)

        self._requests.publish(Pending(found.body, request, answer))

    def _from_thread(self, call: Callable[[], None]) -> None:
        loop = self._connection.ioloop
        soon = getattr(loop, "add_callback_threadsafe", None) or loop.call_soon_threadsafe
        soon(call)

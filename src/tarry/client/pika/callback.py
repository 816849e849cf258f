"""The shell for pika's callback connections: SelectConnection, AsyncioConnection, and their like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pika.channel import Channel
from pika.exceptions import AMQPError

from tarry.client.options import Options
from tarry.client.outcomes import PROPERTIES
from tarry.client.pika.confirming import ConfirmingPublisher, Pending
from tarry.client.pika.shell import Shell
from tarry.client.request import Incoming
from tarry.client.settle import requeued, unreported, unsettled
from tarry.contract.properties import Properties

_LOOK_AGAIN = 0.02
"""Seconds between two looks at what is still to be said."""


class CallbackRetries(Shell):
    """Lives as long as its connection: a consumer that connects anew makes a new one. Never blocks."""

    def __init__(self, connection: Any, options: Options | None = None) -> None:
        super().__init__(options)
        self._connection = connection
        self._requests = ConfirmingPublisher(connection, self.options.names.intake)
        self._reports: Channel | None = None

    def close(self, then: Callable[[], None] | None = None) -> None:
        """Reports what is left, and closes its channels; the connection stays.

        `then` is called when all of it is said, and what was at work in threads is settled: close the connection there.
        If the connection goes before, it is not called.
        """
        self._closing = True
        self._settle_handled()
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
        """Reports what there is to report, now, or as soon as there is a channel for it."""
        if not self._outcomes:
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

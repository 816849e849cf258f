"""The adapter for pika's BlockingConnection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any, Self

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPChannelError, AMQPError, ChannelClosed, ChannelWrongStateError, NackError

from tarry.amqp.properties import Properties
from tarry.client.options import Options
from tarry.client.outcomes import PROPERTIES
from tarry.client.pika.adapter import PikaAdapter
from tarry.client.request import Incoming
from tarry.client.settle import requeued, unreported

_REFUSALS = (AMQPChannelError, ChannelClosed, ChannelWrongStateError, NackError)
"""The request was returned or refused, or its channel was closed. A lost connection is not in this list: the broker
then delivers the message again, and the consumer's own loop gets the exception as usual."""

_BETWEEN_HEARTBEATS = 0.5
"""Seconds between two calls of `process_data_events` while waiting for threads, so that heartbeats continue."""


class BlockingRetries(PikaAdapter):
    """Settles messages on a BlockingConnection.

    Publishes on its own channels, on the same connection unless `publishing` is given.
    """

    def __init__(
        self,
        connection: BlockingConnection,
        options: Options | None = None,
        *,
        publishing: BlockingConnection | None = None,
    ) -> None:
        super().__init__(options)
        self._connection = connection
        self._publishing = publishing or connection
        self._requests: BlockingChannel | None = None
        self._reports: BlockingChannel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for handlers that run in threads, sends the pending reports and closes its own channels.

        The connection stays open.
        """
        self._closing = True
        self._finish_threads()
        self._outcomes.forget_starts()
        self.flush()
        for channel in (self._requests, self._reports):
            if channel is not None and channel.is_open:
                self._close_channel(channel)

    def _finish_threads(self) -> None:
        """Without this, handled messages would stay unacknowledged: handled again, and their success never reported."""
        while (jobs := list(self._in_threads)) and self._connection.is_open:
            wait(jobs, timeout=_BETWEEN_HEARTBEATS, return_when=FIRST_COMPLETED)
            self._settle_handled()
            self._connection.process_data_events()
        self._settle_handled()

    @staticmethod
    def _close_channel(channel: BlockingChannel) -> None:
        """The broker may report only now that the exchange for reports does not exist."""
        try:
            channel.close()
        except ChannelClosed as error:
            unreported(error)

    def flush(self) -> None:
        """Sends the pending reports now. Network errors are logged, not raised."""
        self._send(self._outcomes.take())

    def _report_start(self) -> None:
        """At once, together with pending successes: nothing can be sent while the handler runs in this thread."""
        self._send(self._outcomes.take(every_start=True))

    def _send(self, report: bytes | None) -> None:
        if report is None:
            return
        try:
            if self._reports is None or not self._reports.is_open:
                self._reports = self._publishing.channel()
            self._reports.basic_publish(self.options.names.reports, "", report, _as_pikas(PROPERTIES))
        except AMQPError as error:
            unreported(error)

    def _flush_soon(self) -> None:
        self._connection.call_later(self.options.report_seconds, self.flush)

    def _ask(self, channel: Any, tag: int, found: Incoming, request: Properties) -> None:
        for pause in (*self.options.pauses, None):
            try:
                self._publish(found.body, request)
            except _REFUSALS as refusal:
                self._renew()
                if pause is None:
                    requeued(found, refusal)
                    channel.basic_nack(tag, requeue=True)
                    return
                self._connection.sleep(pause)
            else:
                channel.basic_ack(tag)
                return

    def _publish(self, body: bytes, request: Properties) -> None:
        if self._requests is None or not self._requests.is_open:
            self._requests = self._publishing.channel()
            self._requests.confirm_delivery()
        self._requests.basic_publish(self.options.names.intake, "", body, _as_pikas(request), mandatory=True)

    def _renew(self) -> None:
        """Closes the channel: on old brokers, once a full queue has refused a publish, the channel keeps refusing."""
        if self._requests is not None and self._requests.is_open:
            self._requests.close()

    def _from_thread(self, call: Callable[[], None]) -> None:
        self._connection.add_callback_threadsafe(call)


def _as_pikas(properties: Properties) -> Any:
    """Of properties, pika needs only the encoded bytes."""
    return properties

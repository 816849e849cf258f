"""The shell for pika's BlockingConnection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any, Self

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPChannelError, AMQPError, ChannelClosed, ChannelWrongStateError, NackError

from tarry.client.options import Options
from tarry.client.outcomes import PROPERTIES
from tarry.client.pika.shell import Shell
from tarry.client.request import Incoming
from tarry.client.settle import requeued, unreported
from tarry.contract.properties import Properties

_REFUSALS = (AMQPChannelError, ChannelClosed, ChannelWrongStateError, NackError)
"""The request was returned, refused, or its channel closed under it. A lost connection is not among them: there the
message comes again by itself, and the consumer's own loop is told as ever."""

_BETWEEN_HEARTBEATS = 0.5
"""Seconds after which a connection that waits for its threads is looked after."""


class Retries(Shell):
    """Publishes on channels of its own, on the same connection unless it is given another one."""

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
        """Waits for what is at work in threads, reports what is left, and closes its channels; the connection stays."""
        self._closing = True
        self._finish_threads()
        self.flush()
        for channel in (self._requests, self._reports):
            if channel is not None and channel.is_open:
                self._close_channel(channel)

    def _finish_threads(self) -> None:
        """What was handled and not acknowledged would be handled once more, and its success told to nobody."""
        while (jobs := list(self._in_threads)) and self._connection.is_open:
            wait(jobs, timeout=_BETWEEN_HEARTBEATS, return_when=FIRST_COMPLETED)
            self._settle_handled()
            self._connection.process_data_events()
        self._settle_handled()

    @staticmethod
    def _close_channel(channel: BlockingChannel) -> None:
        """That a report had nowhere to go may be heard only now."""
        try:
            channel.close()
        except ChannelClosed as error:
            unreported(error)

    def flush(self) -> None:
        """Reports what there is to report, now."""
        report = self._outcomes.take()
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
        """Old brokers go on refusing on a channel on which a full queue has refused once."""
        if self._requests is not None and self._requests.is_open:
            self._requests.close()

    def _from_thread(self, call: Callable[[], None]) -> None:
        self._connection.add_callback_threadsafe(call)


def _as_pikas(properties: Properties) -> Any:
    """All that pika asks properties for is their bytes."""
    return properties

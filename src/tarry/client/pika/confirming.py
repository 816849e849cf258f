"""Publishes on a pika callback connection and reports the result of each message: confirmed, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pika import spec
from pika.channel import Channel
from pika.exceptions import AMQPError

from tarry.amqp.properties import Properties

Answer = Callable[[object | None], None]
"""Called once: with None if the broker confirmed the message, otherwise with the reason."""


class Pending(NamedTuple):
    body: bytes
    properties: Properties
    answer: Answer


class ConfirmingPublisher:
    """Opens its channel when it is first needed, and again if the broker closes it.

    The exchange is a fanout and ignores the routing key, so the routing key carries the delivery tag: it identifies a
    message that is returned.
    """

    def __init__(self, connection: Any, exchange: str) -> None:
        self._connection = connection
        self._exchange = exchange
        self._channel: Channel | None = None
        self._ready = False
        self._waiting: list[Pending] = []
        self._sent: dict[int, Pending] = {}
        self._returned: set[int] = set()
        self._tag = 0

    def publish(self, message: Pending) -> None:
        if self._ready:
            self._send(message)
            return
        self._waiting.append(message)
        if self._channel is None:
            self._open()

    @property
    def is_waiting(self) -> bool:
        """Whether any message has no result yet."""
        return bool(self._sent or self._waiting)

    def close(self) -> None:
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def _open(self) -> None:
        try:
            self._channel = self._connection.channel(on_open_callback=self._on_open)
            self._channel.add_on_close_callback(self._on_closed)
        except AMQPError as error:
            self._on_closed(None, error)

    def _on_open(self, channel: Channel) -> None:
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=self._on_confirming)

    def _on_confirming(self, _: object) -> None:
        self._ready = True
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._send(message)

    def _send(self, message: Pending) -> None:
        channel: Any = self._channel
        try:
            channel.basic_publish(self._exchange, str(self._tag + 1), message.body, message.properties, mandatory=True)
        except AMQPError as error:
            message.answer(error)
            return
        self._tag += 1
        self._sent[self._tag] = message

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        """The broker sends a return before the ack of the same message."""
        self._returned.add(int(method.routing_key))

    def _on_confirm(self, frame: Any) -> None:
        taken, last = isinstance(frame.method, spec.Basic.Ack), int(frame.method.delivery_tag)
        tags = sorted(tag for tag in self._sent if tag <= last) if frame.method.multiple else [last]
        for tag in tags:
            message = self._sent.pop(tag, None)
            if message is not None:
                message.answer(self._why_not(tag, taken=taken))
        if not taken:
            self._renew()

    def _renew(self) -> None:
        """Replaces the channel: on old brokers, once a full queue has refused a publish, the channel keeps refusing."""
        self._ready = False
        self.close()

    def _why_not(self, tag: int, *, taken: bool) -> object | None:
        if tag in self._returned:
            self._returned.discard(tag)
            return f"the exchange {self._exchange!r} leads to no queue"
        return None if taken else "the broker refused it"

    def _on_closed(self, _channel: Any, reason: object) -> None:
        """Messages in flight may or may not have been accepted: publishing them again is the only safe way."""
        lost = [*self._sent.values(), *self._waiting]
        self._channel, self._ready, self._tag = None, False, 0
        self._sent, self._waiting, self._returned = {}, [], set()
        for message in lost:
            message.answer(reason)

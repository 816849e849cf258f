"""A delivery of aio-pika's, as the shared core sees it."""

from __future__ import annotations

from aio_pika.abc import AbstractIncomingMessage

from tarry.client.attempt import Attempt
from tarry.client.request import Incoming
from tarry.contract.properties import Properties


def attempt_of(message: AbstractIncomingMessage, queue: str) -> Attempt:
    """Which attempt this delivery is, of how many, and until when."""
    message_id = message.message_id
    shown = message_id.replace("\x00", "\\x00") if message_id else None
    return Attempt.read(message.headers, queue, shown, message.body)


def incoming(queue: str, message: AbstractIncomingMessage) -> Incoming:
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
        priority=message.priority or None,  # aio-pika makes 0 of none
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

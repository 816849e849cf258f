"""A delivery of pika's, as the shared core sees it."""

from __future__ import annotations

from typing import Any

from pika import BasicProperties

from tarry.client.attempt import Attempt
from tarry.client.request import Incoming
from tarry.contract.properties import Properties


def attempt_of(properties: BasicProperties, queue: str, body: bytes | None = None) -> Attempt:
    """Which attempt this delivery is, of how many, and until when. A guard needs the body to know a first delivery."""
    return Attempt.read(properties.headers, queue, _text(properties.message_id), body)


def incoming(queue: str, method: Any, properties: BasicProperties, body: bytes) -> Incoming:
    return Incoming(
        queue=queue,
        exchange=str(method.exchange),
        routing_key=str(method.routing_key),
        body=body,
        headers=properties.headers or {},
        properties=_plain(properties),
        attempt=attempt_of(properties, queue, body),
    )


def _plain(properties: BasicProperties) -> Properties:
    return Properties(
        content_type=_raw(properties.content_type),
        content_encoding=_raw(properties.content_encoding),
        priority=properties.priority,
        correlation_id=_raw(properties.correlation_id),
        reply_to=_raw(properties.reply_to),
        message_id=_raw(properties.message_id),
        timestamp=properties.timestamp,
        type=_raw(properties.type),
        user_id=_raw(properties.user_id),
        app_id=_raw(properties.app_id),
    )


def _raw(value: str | bytes | None) -> bytes | None:
    """What is not UTF-8 pika leaves as bytes."""
    return value.encode() if isinstance(value, str) else value


def _text(value: str | bytes | None) -> str | None:
    """As the router reads it, so that both make the same retry id of it."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    return value.replace("\x00", "\\x00") if value else None

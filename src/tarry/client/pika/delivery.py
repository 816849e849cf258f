"""Converts a pika delivery to the types of the shared core."""

from __future__ import annotations

from typing import Any

from pika import BasicProperties

from tarry.amqp.properties import Properties
from tarry.client.attempt import Attempt
from tarry.client.request import Incoming


def attempt_of(properties: BasicProperties, queue: str, body: bytes | None = None) -> Attempt:
    """Which attempt this delivery is, how many are allowed, and until when.

    A deduplicator needs the body to identify a first delivery.
    """
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
    """Values that are not UTF-8 arrive from pika as bytes."""
    return value.encode() if isinstance(value, str) else value


def _text(value: str | bytes | None) -> str | None:
    """Decoded as the router decodes it, so that both compute the same retry id."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    return value.replace("\x00", "\\x00") if value else None

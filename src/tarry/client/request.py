"""Builds the retry request for a delivery that failed: the original message, plus headers that describe the failure.

Both adapters publish exactly the bytes that are made here: the libraries' own encoders reduce the precision of doubles
and refuse some of the values that their decoders produce.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.client.attempt import Attempt
from tarry.client.failure import FailureDescription, describe, owner_of
from tarry.client.options import Options
from tarry.contract import headers as h
from tarry.contract.safety import in_frame, safe

FRAME_MAX = 131_072
"""The frame size that brokers and clients negotiate by default."""

SHORT_REASON = 80
"""The maximum length of a reason, in characters, when the headers are close to the frame limit."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A delivery, independent of the library."""

    queue: str
    exchange: str
    routing_key: str
    body: bytes
    headers: Mapping[str, Any]
    properties: Properties
    """All properties except the headers."""
    attempt: Attempt


def request(
    incoming: Incoming, failure: FailureDescription, frame_max: int = FRAME_MAX, owner: str | None = None
) -> Properties:
    """The properties of the request; its body is the delivery's. A message that has an owner keeps it."""
    made = safe(incoming.properties, table(_headers(incoming, failure, owner)))
    if in_frame(made, frame_max) or len(failure.error_reason) <= SHORT_REASON:
        return made
    shorter = replace(failure, error_reason=failure.error_reason[: SHORT_REASON - 1] + "…")
    return request(incoming, shorter, frame_max, owner)


def _headers(incoming: Incoming, failure: FailureDescription, owner: str | None) -> dict[str, Any]:
    """All of tarry's own headers are kept: they say which round failed. The description of an earlier failure is
    dropped.
    """
    own = {
        h.ORIGINAL_QUEUE: incoming.queue,
        h.ORIGINAL_EXCHANGE: incoming.exchange,
        h.ORIGINAL_KEY: incoming.routing_key or incoming.queue,
        h.RETRY_COUNT: incoming.attempt.retry_count,
        h.ERROR_TYPE: failure.error_type,
        h.ERROR_REASON: failure.error_reason,
        h.ERROR_CLASS: failure.verdict.error_class,
        h.RETRY_AFTER: failure.verdict.retry_after_ms,
        h.OWNER: None if incoming.headers.get(h.OWNER) else owner,
    }
    kept = {name: value for name, value in incoming.headers.items() if not _is_stale(name)}
    return kept | {name: value for name, value in own.items() if value is not None}


def _is_stale(name: str) -> bool:
    return name in _STALE or name.startswith(h.BROKERS_OWN_PREFIXES)


_STALE = h.OF_THIS_FAILURE | h.BROKERS_OWN | {h.ORIGINAL_QUEUE, h.ORIGINAL_EXCHANGE, h.ORIGINAL_KEY}


def retry_request(
    queue: str,
    error: BaseException,
    *,
    message_id: str | None = None,
    headers: Mapping[str, Any] | None = None,
    exchange: str = "",
    routing_key: str = "",
    content_type: str | None = None,
    owner: str | None = None,
    options: Options | None = None,
) -> Properties:
    """The properties of a request, for frameworks that hide the delivery but show some of its properties.

    Publish it to `retry.intake` with the message's body, mandatory and confirmed, with pika or any client that accepts
    encoded properties. If `headers` does not include tarry's headers, attempts are counted by message id.
    """
    chosen = options or Options()
    raw_id, raw_type = (text.encode() if text else None for text in (message_id, content_type))
    about = Properties(message_id=raw_id, content_type=raw_type)
    attempt = Attempt.read(headers, queue, message_id)
    incoming = Incoming(queue, exchange, routing_key, b"", headers or {}, about, attempt)
    named = owner or owner_of(chosen, incoming.headers, incoming.body)
    return request(incoming, describe(error, chosen, time.time_ns() // 1_000_000), owner=named)

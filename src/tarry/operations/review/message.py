"""Parses the headers of a message in the review queue, without trusting any of them. Pure."""

from __future__ import annotations

import base64
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, Field, pick, walk, walk_array
from tarry.amqp.properties import Properties
from tarry.contract import headers as h
from tarry.contract.header_reader import HeaderReader, RefusalError, sane_owner
from tarry.contract.identity import message_id_of
from tarry.contract.retry_headers import RetryHeaders, priority_of, read_retry_headers

Key = tuple[str, int]
"""A retry id and a round: they identify a message in review."""

_REASON = h.REVIEW_REASON.encode()
_KEY = frozenset({h.ID.encode(), h.ROUND.encode(), _REASON})
_READ = frozenset(
    name.encode()
    for name in (
        *(h.ID, h.ROUND, h.COUNT, h.QUEUE, h.EXCHANGE, h.KEY, h.SINCE, h.FORM, h.OWN_PRIORITY, h.REVIEW_REASON),
        *(h.ERROR_TYPE, h.ERROR_REASON, h.PRIORITY, h.JOB_TYPE, h.MAX_RETRIES, h.ORIGINAL_QUEUE, h.OWNER),
    )
)


@dataclass(frozen=True, slots=True)
class ReviewHeaders:
    """Review headers of a message. A field is None or empty if its header is missing or unreadable."""

    key: Key | None
    message_id: str | None
    queue: str = ""
    """The origin queue; empty on a message that could not be parsed, or that tarry did not put there."""
    exchange: str = ""
    routing_key: str = ""
    reason: str | None = None
    retry_count: int = 0
    max_retries: int | None = None
    since_ms: int | None = None
    contract: bool = False
    error_type: str | None = None
    error_reason: str | None = None
    own_priority: int | None = None
    """The message's own AMQP priority."""
    priority: str | None = None
    job_type: str | None = None
    owner: str | None = None
    names_queue: bool = False
    """Whether the request named its queue in a header. If so, only tarry's own content type makes it an envelope."""


def key_of(delivery: Delivery) -> Key | None:
    """Reads only the key, because this runs for every message in the queue."""
    try:
        found = pick(delivery.properties.headers or b"", _KEY)
    except BadTableError:
        return None
    return _key(found, read_retry_headers(found, longest=sys.maxsize))


def read_review_headers(delivery: Delivery) -> ReviewHeaders:
    message_id = message_id_of(delivery.properties)
    try:
        found = pick(delivery.properties.headers or b"", _READ)
    except BadTableError:
        return ReviewHeaders(None, message_id, own_priority=delivery.properties.priority)
    own = read_retry_headers(found, longest=sys.maxsize)
    delivered = delivery.routing_key if isinstance(delivery.routing_key, str) else ""
    return ReviewHeaders(
        key=_key(found, own),
        message_id=message_id,
        queue=own.queue or "",
        exchange=own.exchange or "",
        routing_key=delivered if own.routing_key is None else own.routing_key,
        reason=_text(found, h.REVIEW_REASON),
        retry_count=0 if h.COUNT in own.wrong else own.retry_count or 0,
        max_retries=_count(found, h.MAX_RETRIES) if own.contract else None,
        since_ms=None if h.SINCE in own.wrong else own.since_ms,
        contract=own.contract,
        error_type=_text(found, h.ERROR_TYPE),
        error_reason=_text(found, h.ERROR_REASON),
        own_priority=priority_of(own, delivery.properties.priority),
        priority=_word(found, h.PRIORITY) if own.contract else None,
        job_type=_word(found, h.JOB_TYPE) if own.contract else None,
        owner=_owner(found) if own.contract else None,
        names_queue=HeaderReader(found).states(h.ORIGINAL_QUEUE),
    )


def _key(found: dict[bytes, Field], own: RetryHeaders) -> Key | None:
    """A message without a review reason was not put there by tarry: an id on it is from an earlier round."""
    if _REASON not in found or own.round is None or h.ROUND in own.wrong:
        return None
    retry_id = own.retry_id
    return None if retry_id is None else (retry_id, own.round)


def _text(found: dict[bytes, Field], name: str) -> str | None:
    field = found.get(name.encode())
    return field.text() if field is not None else None


def _count(found: dict[bytes, Field], name: str) -> int | None:
    field = found.get(name.encode())
    number = field.integer() if field is not None else None
    return number if number is not None and number >= 0 else None


def _word(found: dict[bytes, Field], name: str) -> str | None:
    field = found.get(name.encode())
    number = field.integer() if field is not None and field.text() is None else None
    return str(number) if number is not None else _text(found, name)


def _owner(found: dict[bytes, Field]) -> str | None:
    """One that a request may not have counts as absent: it may be why the message is in review."""
    try:
        return sane_owner(_word(found, h.OWNER))
    except RefusalError:
        return None


DEEPEST = 16
_FLOATS = {b"f": ">f", b"d": ">d"}


def describe(encoded: bytes | Properties) -> dict[str, Any]:
    """The properties that are set, with the headers under a key of their own."""
    try:
        properties = encoded if isinstance(encoded, Properties) else Properties.decode(encoded)
    except BadTableError as error:
        return {"unreadable": str(error)}
    described = {
        one.name: _plain(getattr(properties, one.name))
        for one in fields(properties)
        if one.name != "headers" and getattr(properties, one.name) is not None
    }
    return described | {"headers": headers(properties.headers or b"")}


def headers(table: bytes) -> dict[str, Any]:
    try:
        return dict(_entries(table, 0))
    except BadTableError as error:
        return {"unreadable": str(error)}


def _entries(table: bytes, depth: int) -> Iterator[tuple[str, Any]]:
    return ((name.decode(errors="backslashreplace"), _value(one, depth)) for name, one in walk(table))


def _value(one: Field, depth: int) -> Any:
    if one.kind == b"V":
        return None
    if one.kind == b"t":
        return one.value != b"\0"
    if one.kind in _FLOATS:
        return _finite(float(struct.unpack(_FLOATS[one.kind], one.value)[0]))
    if one.kind == b"T":
        return {"timestamp": int.from_bytes(one.value)}
    if one.kind in (b"F", b"A"):
        return _nested(one, depth)
    text = one.text()
    if text is not None:
        return text
    number = one.integer() if one.kind not in (b"S", b"x") else None
    return number if number is not None else {"base64": base64.b64encode(one.value).decode()}


def _nested(one: Field, depth: int) -> Any:
    if depth >= DEEPEST:
        return {"base64": base64.b64encode(one.value).decode()}
    if one.kind == b"F":
        return dict(_entries(one.value, depth + 1))
    return [_value(item, depth + 1) for item in walk_array(one.value)]


def _finite(number: float) -> float | str:
    """JSON has no infinities and no NaN: they become text."""
    return number if number - number == 0 else str(number)


def _plain(value: bytes | int) -> str | int:
    return value if isinstance(value, int) else value.decode(errors="backslashreplace")

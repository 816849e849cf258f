"""Reads RetryMessage envelopes, and determines in which of the three forms a request was made."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from tarry.amqp.delivery import Delivery
from tarry.contract import headers as h
from tarry.contract.deaths import Death, last_death
from tarry.contract.header_reader import LONGEST_TEXT, HeaderReader, RefusalError
from tarry.contract.message import Form, Origin
from tarry.contract.retry_pb2 import RetryMessage
from tarry.core.names import Names


def json_problem(error: Exception) -> str:
    """Describe an error that `json.loads` raised."""
    match error:
        case json.JSONDecodeError():
            return f"it is not valid JSON (line {error.lineno}, column {error.colno})"
        case UnicodeDecodeError():
            return f"it is not UTF-8 text, at byte {error.start}"
        case RecursionError():
            return "it is nested too deeply"
        case _ if "integer string conversion" in str(error):
            return f"a number in it has more than {sys.get_int_max_str_digits():,} digits"
        case _:
            return str(error)


OWN_TYPES = frozenset({b"application/vnd.tarry.retry", b"application/vnd.tarry.retry+json"})
"""Content types that are only used for envelopes."""
PROTOBUF_TYPES = frozenset({b"application/x-protobuf", b"application/protobuf", b"application/vnd.google.protobuf"})
JSON_TYPES = frozenset({b"application/json", b"application/vnd.tarry.retry+json"})
_is_base64 = re.compile(r"(?:[\w+/-]{4})*(?:[\w+/-]{2,3}={0,2})?", re.ASCII).fullmatch
_KINDS = {name: field.type for field in RetryMessage.DESCRIPTOR.fields for name in (field.name, field.json_name)}
_NAMES = frozenset(_KINDS)
_EXPECTED = {
    FieldDescriptor.TYPE_INT32: f"a whole number from 0 to {2**31 - 1}",
    FieldDescriptor.TYPE_INT64: f"a whole number from 0 to {2**63 - 1}",
    FieldDescriptor.TYPE_BYTES: "base64",
}
_ANY_TYPE = OWN_TYPES | PROTOBUF_TYPES | JSON_TYPES


@dataclass(frozen=True, slots=True)
class Envelope:
    """A RetryMessage; an unset field is None unless stated otherwise."""

    message_id: str | None
    original_payload: bytes
    original_queue: str
    """Empty if the envelope names none; a header may name it."""
    error_reason: str | None
    retry_count: int
    max_retries: int | None
    next_retry_at_ms: int | None
    owner: str | None = None


def is_envelope(content_type: bytes | None) -> bool:
    """Whether the body may be an envelope. An application's own messages can be protobuf or JSON too."""
    return _bare(content_type) in _ANY_TYPE


def is_surely_envelope(content_type: bytes | None) -> bool:
    return _bare(content_type) in OWN_TYPES


def open_envelope(content_type: bytes | None, body: bytes) -> Envelope:
    """Parse an envelope; raises RefusalError if the body does not match its content type."""
    message = RetryMessage()
    try:
        if _bare(content_type) in JSON_TYPES:
            ParseDict(_checked_json(body), message, ignore_unknown_fields=True)
        else:
            message.ParseFromString(body)
    except (DecodeError, ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RefusalError(f"the RetryMessage envelope cannot be read: {_problem(error, body)[:200]}") from None
    return Envelope(
        message_id=message.message_id or None,
        original_payload=message.original_payload,
        original_queue=message.original_queue,
        error_reason=message.error_reason[:LONGEST_TEXT] or None,
        retry_count=message.retry_count,
        max_retries=message.max_retries if message.HasField("max_retries") else None,
        next_retry_at_ms=message.next_retry_at_ms if message.HasField("next_retry_at_ms") else None,
        owner=message.owner or None,
    )


def glimpse(content_type: bytes | None, body: bytes) -> Envelope | None:
    """Message id and queue of a JSON envelope that cannot be parsed, if they are text."""
    try:
        fields = json.loads(body) if _bare(content_type) in JSON_TYPES else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    message_id, queue = _text(fields, "message_id", "messageId"), _text(fields, "original_queue", "originalQueue")
    return Envelope(message_id or None, b"", queue, None, 0, None, None)


def _text(fields: dict[str, Any], *names: str) -> str:
    found = next((fields[name] for name in names if isinstance(fields.get(name), str)), "")
    return str(found) if str(found).isprintable() else ""


def _checked_json(body: bytes) -> dict[str, Any]:
    """The envelope's known JSON fields, with the payload checked to be base64.

    The protobuf library skips characters that are not base64, which would corrupt the payload, and it fails on a name
    that is not valid Unicode.
    """
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise TypeError("it must be a JSON object")
    for name in ("original_payload", "originalPayload"):
        if not _is_base64(str(fields.get(name) or "")):
            raise ValueError(f"`{name}` is not base64")
    return {name: value for name, value in fields.items() if name in _NAMES}


def _problem(error: Exception, body: bytes) -> str:
    """Describe a parse error for users; the libraries' messages are written for programmers."""
    if isinstance(error, DecodeError):
        return "a text in it is not UTF-8" if "UTF-8" in str(error) else "it is not protobuf"
    return _wrong_field(json.loads(body)) if isinstance(error, ParseError) else json_problem(error)


def _wrong_field(fields: dict[str, Any]) -> str:
    """Name the first field that cannot be read, and what it must be."""
    for name, value in fields.items():
        try:
            ParseDict({name: value}, RetryMessage(), ignore_unknown_fields=True)
        except ParseError:
            return f"`{name}` must be {_EXPECTED.get(_KINDS[name], 'text')}"
    return "one of its fields is given twice"


def _bare(content_type: bytes | None) -> bytes:
    """The content type without parameters such as `; messageType=…`."""
    return (content_type or b"").partition(b";")[0].strip().lower()


RequestSource = Death | Envelope | None
"""What a request states besides its headers: the death of a bare reject, the envelope, or nothing."""

_DEATHS = h.DEATHS.encode()


def read_form(delivery: Delivery, headers: HeaderReader, names: Names) -> tuple[Form, RequestSource]:
    """The form of a request, and what it states besides its headers.

    A message that the broker dead-lettered from an attached queue is a bare reject, whatever headers its application
    set. tarry's own content type means that the body is an envelope.
    """
    content_type = delivery.properties.content_type
    death = last_death(headers.fields.get(_DEATHS), names, headers.decoding)
    if death is not None and delivery.exchange == names.intake:
        return "reject", death
    if is_surely_envelope(content_type):
        return "envelope", open_envelope(content_type, delivery.body)
    if headers.states(h.ORIGINAL_QUEUE):
        return "headers", None
    if death is not None:
        return "reject", death
    if is_envelope(content_type):
        return "envelope", open_envelope(content_type, delivery.body)
    raise RefusalError(
        f"no origin: it was not dead-lettered, has no `{h.ORIGINAL_QUEUE}` header and is not a RetryMessage envelope"
    )


def stated_origin(source: RequestSource, headers: HeaderReader) -> Origin:
    """The origin as stated by the request, not validated; the queue is empty if none is named."""
    if isinstance(source, Death):
        return Origin(source.queue, source.exchange, source.routing_key)
    queue = (source.original_queue if source else "") or headers.text(h.ORIGINAL_QUEUE) or ""
    return Origin(queue, headers.text(h.ORIGINAL_EXCHANGE) or "", headers.text(h.ORIGINAL_KEY) or queue)

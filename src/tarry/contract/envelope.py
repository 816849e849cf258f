"""The envelope form of a request: protobuf `RetryMessage`, or the same in JSON with a base64 payload."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from tarry.contract.json_text import json_problem
from tarry.contract.reading import LONGEST_TEXT, RefusalError
from tarry.contract.retry_pb2 import RetryMessage

OWN_TYPES = frozenset({b"application/vnd.tarry.retry", b"application/vnd.tarry.retry+json"})
"""These say for certain that the body is an envelope."""
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
    """A RetryMessage; what is unset is None."""

    message_id: str | None
    original_payload: bytes
    original_queue: str
    """Empty where it names none: a header may."""
    error_reason: str | None
    retry_count: int
    max_retries: int | None
    next_retry_at_ms: int | None


def is_envelope(content_type: bytes | None) -> bool:
    """Whether the body may be one: an application's own messages can be protobuf or JSON just as well."""
    return _bare(content_type) in _ANY_TYPE


def is_surely_envelope(content_type: bytes | None) -> bool:
    return _bare(content_type) in OWN_TYPES


def open_envelope(content_type: bytes | None, body: bytes) -> Envelope:
    """Refuses a body that is not what its content type says."""
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
    )


def glimpse(content_type: bytes | None, body: bytes) -> Envelope | None:
    """Message id and queue of a JSON envelope that cannot be opened, as far as they are text."""
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
    """The library passes over what is not base64, and would return a payload with holes in it; and it stumbles over a
    name that is no Unicode, so it gets those that it knows and no other.
    """
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise TypeError("it must be a JSON object")
    for name in ("original_payload", "originalPayload"):
        if not _is_base64(str(fields.get(name) or "")):
            raise ValueError(f"`{name}` is not base64")
    return {name: value for name, value in fields.items() if name in _NAMES}


def _problem(error: Exception, body: bytes) -> str:
    """The libraries' own words are for programmers."""
    if isinstance(error, DecodeError):
        return "a text in it is not UTF-8" if "UTF-8" in str(error) else "it is not protobuf"
    return _wrong_field(json.loads(body)) if isinstance(error, ParseError) else json_problem(error)


def _wrong_field(fields: dict[str, Any]) -> str:
    """The first that cannot be read, and what it must be."""
    for name, value in fields.items():
        try:
            ParseDict({name: value}, RetryMessage(), ignore_unknown_fields=True)
        except ParseError:
            return f"`{name}` must be {_EXPECTED.get(_KINDS[name], 'text')}"
    return "one of its fields is given twice"


def _bare(content_type: bytes | None) -> bytes:
    """Without parameters such as `; messageType=…`."""
    return (content_type or b"").partition(b";")[0].strip().lower()

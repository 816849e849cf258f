"""A waiting row of another system, and the retry request that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tarry.amqp.field_tables import table
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message
from tarry.contract import headers as h
from tarry.contract.header_reader import FAR_FUTURE_MS, LONGEST_TEXT, SURELY_SECONDS
from tarry.contract.identity import retry_id
from tarry.contract.safety import in_frame
from tarry.core.names import LONGEST_NAME

_HEADERS = {
    "original_exchange": h.ORIGINAL_EXCHANGE,
    "original_routing_key": h.ORIGINAL_KEY,
    "max_retries": h.MAX_RETRIES,
    "error_type": h.ERROR_TYPE,
    "error_reason": h.ERROR_REASON,
    "priority": h.PRIORITY,
    "job_type": h.JOB_TYPE,
    "owner": h.OWNER,
}
"""Fields of a row that become headers of the request, unchanged."""

TEXTS = frozenset({"message_id", "content_type", *_HEADERS}) - {"max_retries"}


class ImportRow(NamedTuple):
    """One row: its key, when it is due, and its other fields by name. A field without a value is None."""

    key: str
    due_ms: int | None
    queue: str | None
    payload: bytes | None
    retry_count: int
    """Retries used, with the one that the row waits for."""
    fields: Mapping[str, Any]


class CannotImportError(Exception):
    """A row cannot be a request; the message says why. It stays where it is."""


def request_of(row: ImportRow, source: str, queue: str, frame_max: int) -> Message:
    """The request. Its retry id is that of the row, so that a request that is sent twice is recognised."""
    _check(row)
    identity = retry_id(source, row.key)
    properties = Properties(
        content_type=_short(row, "content_type"),
        headers=_table(row, identity),
        delivery_mode=PERSISTENT,
        message_id=_short(row, "message_id"),
    )
    if not in_frame(properties, frame_max):
        raise CannotImportError("its headers do not fit into one frame")
    return Message("", queue, properties, row.payload or b"", f"{identity}:0")


def _check(row: ImportRow) -> None:
    if not row.queue or len(row.queue.encode()) > LONGEST_NAME:
        raise CannotImportError(f"it has no queue of 1 to {LONGEST_NAME} bytes to return to")
    if row.due_ms is None:
        raise CannotImportError("it has no due time")
    if not SURELY_SECONDS <= row.due_ms <= FAR_FUTURE_MS:
        raise CannotImportError(f"its due time is {row.due_ms}, which is not in milliseconds since 1970")
    if row.payload is None:
        raise CannotImportError("it has no payload")


def _table(row: ImportRow, identity: str) -> bytes:
    own = {header: row.fields[field] for field, header in _HEADERS.items() if row.fields.get(field) is not None}
    if h.ERROR_REASON in own:
        own[h.ERROR_REASON] = own[h.ERROR_REASON][:LONGEST_TEXT]
    values = {
        **_users(row),
        **own,
        h.ORIGINAL_QUEUE: row.queue,
        h.ID: identity,
        h.ROUND: 0,
        h.QUEUE: row.queue,
        h.COUNT: row.retry_count,
        h.IMPORT_DUE: row.due_ms,
    }
    try:
        return table(values)
    except ValueError as error:
        raise CannotImportError(f"its headers cannot be sent: {error}") from None


def _users(row: ImportRow) -> dict[str, Any]:
    """The message's own headers. One that the broker or tarry sets would be taken for theirs."""
    given = row.fields.get("headers")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise CannotImportError("its headers are not a JSON object")
    return {name: value for name, value in given.items() if not _is_reserved(name)}


def _is_reserved(name: str) -> bool:
    return name in h.COPIES or name.startswith((h.OURS, "x-"))


def _short(row: ImportRow, field: str) -> bytes | None:
    text = row.fields.get(field)
    raw = text.encode() if text else None
    if raw is not None and len(raw) > LONGEST_NAME:
        raise CannotImportError(f"its {field} has {len(raw)} bytes, and AMQP allows {LONGEST_NAME}")
    return raw

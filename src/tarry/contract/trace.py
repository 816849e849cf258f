"""The trace that a message belongs to (W3C Trace Context), and the ids of the spans that tarry writes about a retry.

The ids are computed from the retry id, the round and the moment of the decision. The header of the message can
therefore stay as its producer wrote it, and still the router, the tap and the consumers refer to the same spans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from tarry.amqp.field_tables import Field
from tarry.contract import headers as h

SpanName = Literal["decide", "publish", "wait"]
"""Spans that tarry writes for each round of a retry."""

_PARENT, _STATE = h.TRACEPARENT.encode(), h.TRACESTATE.encode()
_SAMPLED = 1
_RESERVED = "ff"
_parts = re.compile(r"([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch


class TraceContext(NamedTuple):
    """What `traceparent` and `tracestate` say."""

    trace_id: str
    span_id: str
    """The span that published the message; tarry's spans are its children."""
    sampled: bool
    state: str | None = None


def parse_trace(parent: object, state: object = None) -> TraceContext | None:
    """None if there is no `traceparent`, or none that is valid: a wrong one is no reason to refuse a message."""
    found = _parts(parent) if isinstance(parent, str) else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _RESERVED or (more is not None and version == "00"):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), state if isinstance(state, str) else None)


def trace_of(fields: Mapping[bytes, Field]) -> TraceContext | None:
    """The trace of a message, from the picked fields of its header table."""
    parent = fields.get(_PARENT)
    if parent is None:
        return None
    state = fields.get(_STATE)
    return parse_trace(parent.text(), state and state.text())


def trace_of_headers(headers: Mapping[str, Any] | None) -> TraceContext | None:
    """The same, from headers that a client library has decoded."""
    if not headers or h.TRACEPARENT not in headers:
        return None
    return parse_trace(headers[h.TRACEPARENT], headers.get(h.TRACESTATE))


def span_id(name: SpanName, retry_id: str, round_: int, since_ms: int) -> str:
    """The id of one of tarry's spans, as 16 hexadecimal digits. `since_ms` is when the wait began, or without a wait
    when that was decided: a round has several waits if an operator sends its message again.
    """
    return blake2b(f"{name}:{retry_id}:{round_}:{since_ms}".encode(), digest_size=8).hexdigest()

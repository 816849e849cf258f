"""A span for each attempt at a message of a sampled trace, if the application has OpenTelemetry.

The application configures OpenTelemetry as for its own spans. Without it, or without a sampled `traceparent`, an
attempt costs one lookup in its headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tarry.client.attempt import Attempt
from tarry.contract import headers as h
from tarry.contract.trace import TraceContext, span_id, trace_of_headers

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Tracer

_NO_SPAN: AbstractContextManager[None] = nullcontext()


def attempt_span(
    headers: Mapping[str, Any] | None, queue: str, message_id: object, body: bytes
) -> AbstractContextManager[None]:
    """The span `process <queue>`, current while the handler runs, so that the handler's own spans are its children."""
    if not headers or h.TRACEPARENT not in headers:
        return _NO_SPAN
    trace = trace_of_headers(headers)
    if trace is None or not trace.sampled or (tracer := _tracer()) is None:
        return _NO_SPAN
    return _process(tracer, trace, headers, Attempt.read(headers, queue, _text(message_id)), len(body))


@contextmanager
def _process(
    tracer: Tracer, trace: TraceContext, headers: Mapping[str, Any], attempt: Attempt, size: int
) -> Iterator[None]:
    from opentelemetry import trace as api  # noqa: PLC0415 - it is installed: there is a tracer

    link = _wait_id(headers, attempt)
    span = tracer.start_span(
        f"process {attempt.queue}",
        context=api.set_span_in_context(api.NonRecordingSpan(_context(trace, trace.span_id))),
        kind=api.SpanKind.CONSUMER,
        attributes=_attributes(attempt, size),
        links=[api.Link(_context(trace, link))] if link else None,
    )
    # The text of an error may hold secrets, which `Options.redact` would remove: only its type is recorded.
    with api.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(api.StatusCode.ERROR)
            raise


def _attributes(attempt: Attempt, size: int) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": attempt.queue,
        "messaging.message.body.size": size,
        "tarry.attempt": attempt.number,
    }
    if attempt.message_id is not None:
        about["messaging.message.id"] = attempt.message_id
    if attempt.retry_id is not None:
        about |= {"tarry.retry.id": attempt.retry_id, "tarry.retry.round": attempt.round}
    return about


def _wait_id(headers: Mapping[str, Any], attempt: Attempt) -> str | None:
    """The span of the wait that ended with this delivery; None on a first delivery."""
    since_ms = headers.get(h.SCHEDULED)
    if attempt.retry_id is None or not isinstance(since_ms, int):
        return None
    return span_id("wait", attempt.retry_id, attempt.round, since_ms)


def _context(trace: TraceContext, span: str) -> SpanContext:
    from opentelemetry import trace as api  # noqa: PLC0415 - as above

    return api.SpanContext(
        int(trace.trace_id, 16),
        int(span, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
        trace_state=api.TraceState.from_header([trace.state]) if trace.state else None,
    )


@lru_cache(maxsize=1)
def _tracer() -> Tracer | None:
    """Imported when the first sampled message arrives: the client itself has no dependencies."""
    try:
        from opentelemetry import trace as api  # noqa: PLC0415 - an application may not have it
    except ImportError:
        return None
    return api.get_tracer("tarry.client")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

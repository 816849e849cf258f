"""A consumer's own OpenTelemetry, for the spans of tarry's clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from tarry.client import tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = SAMPLED[:-1] + "0"


@contextlib.contextmanager
def application_traces(exporter: SpanExporter, patch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    """As if the application had set this provider; a process can set one only once."""
    provider = TracerProvider(resource=Resource({"service.name": "worker"}), shutdown_on_exit=False)
    processor: SpanProcessor = SimpleSpanProcessor(exporter)
    provider.add_span_processor(processor)
    patch.setattr(tracing, "_tracer", lambda: provider.get_tracer("tarry.client"))
    try:
        yield provider
    finally:
        provider.shutdown()

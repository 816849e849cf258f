"""Sends spans to an OTLP collector, from a thread of its own: a collector that is slow or dead slows nothing down.

The queue of spans is bounded. What does not fit, or cannot be sent, is dropped and counted. OpenTelemetry is imported
only if the standard OTEL_* variables switch it on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import structlog

from tarry import __version__
from tarry.router.traces import Attributes, Span
from tarry.tasks import in_thread

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

log = structlog.get_logger()

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"

LAST_SPANS = 1.5
"""Seconds that the spans in the queue get at shutdown."""

LOST = "spans could not be sent"
NOT_MADE = "spans could not be made"
SENT_AGAIN = "spans can be sent again"
OFF = "traces are off"


class Exporter(Protocol):
    """Sends spans; `True` if the collector has accepted them. It blocks."""

    def __call__(self, spans: Sequence[Span]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The standard limits of a batch span processor."""

    queue: int = 2_048
    batch: int = 512
    delay_s: float = 5.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Limits:
        """From OTEL_BSP_*; what is not a whole number above zero is ignored, with a warning."""
        queue = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", cls().queue)
        batch = _number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", cls().batch)
        delay_ms = _number(environ, "OTEL_BSP_SCHEDULE_DELAY", int(cls().delay_s * 1_000))
        return cls(queue, min(batch, queue), delay_ms / 1_000)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    log.warning("setting ignored", setting=name, value=text, do=f"use a whole number above zero; now {default}")
    return default


@dataclass(slots=True)
class SpanSender:
    """Takes spans from the event loop and sends them from a thread, which starts with the first span."""

    export: Exporter
    interrupt: Callable[[], None]
    """Ends an export in progress; called if shutdown takes too long."""
    limits: Limits = field(default_factory=Limits)
    on_outcome: Callable[[str, int], None] = lambda _outcome, _number: None
    """Called with `sent`, `dropped` or `failed` and a number of spans, also from the thread."""
    endpoint: str = ""
    """The address of the collector, for the log."""
    _queue: deque[Span] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _closing: bool = False
    _failing: bool = False
    _complained: bool = False

    def add(self, spans: Iterable[Span]) -> None:
        """Never waits or raises: retries matter more than traces. What does not fit into the queue is dropped."""
        try:
            self._add(spans)
        except Exception:
            if not self._complained:
                log.exception(NOT_MADE, note="only the first such error is logged; retries are not affected")
            self._complained = True

    def _add(self, spans: Iterable[Span]) -> None:
        added = dropped = 0
        for span in spans:
            if self._closing or len(self._queue) >= self.limits.queue:
                dropped += 1
            else:
                self._queue.append(span)
                added += 1
        if dropped:
            self.on_outcome("dropped", dropped)
        if added and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
            self._thread.start()
        if len(self._queue) >= self.limits.batch:
            self._wake.set()

    async def close(self) -> None:
        """Sends what is in the queue, for as long as `LAST_SPANS`; the rest is dropped."""
        self._closing = True
        self._wake.set()
        thread = self._thread
        if thread is not None:
            await in_thread(lambda: thread.join(LAST_SPANS), "end of traces")
            if thread.is_alive():
                self.interrupt()
        if left := self._take(self.limits.queue):
            self.on_outcome("dropped", len(left))
            log.warning(LOST, spans=len(left), why="the service ends, and the collector does not answer in time")

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self.limits.delay_s)
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _take(self, most: int) -> list[Span]:
        """Called by the thread, and by `close`: each span is taken once."""
        taken: list[Span] = []
        with suppress(IndexError):
            while len(taken) < most:
                taken.append(self._queue.popleft())
        return taken

    def _send_all(self) -> None:
        while batch := self._take(self.limits.batch):
            why: str | None = None
            try:
                if not self.export(batch):
                    why = "the collector does not accept them"
            except Exception as error:  # noqa: BLE001 - whatever it is, the next batch is tried
                why = _text(error)
            self.on_outcome("sent" if why is None else "failed", len(batch))
            self._tell(why)

    def _tell(self, why: str | None) -> None:
        """Logs changes only: a dead collector must not fill the log."""
        if why is None and self._failing:
            log.info(SENT_AGAIN)
        elif why is not None and not self._failing:
            log.warning(LOST, why=why, metric="tarry_spans_total")
        self._failing = why is not None


def span_sender(service: str, broker: Attributes, on_outcome: Callable[[str, int], None]) -> SpanSender | None:
    """None unless OTEL_* variables switch traces on. A mistake in them is logged: retries matter more than traces.
    OpenTelemetry reads most of them itself, so they come from the environment and not from a settings file.

    `broker` has the attributes that say where the broker is.
    """
    environ = os.environ
    name = next((one for one in ENDPOINTS if environ.get(one, "").strip()), None)
    if name is None or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return None
    problem, remedy = _problem(environ, name)
    if problem:
        log.warning(OFF, why=problem, do=remedy)
        return None
    try:
        export, interrupt = _exporter(service, broker)
    except ImportError:
        log.warning(OFF, why=f"{name} is set, but OpenTelemetry is not installed", do="pip install 'tarry[otel]'")
        return None
    except Exception as error:  # noqa: BLE001 - a variable that OpenTelemetry cannot read must not stop a router
        why = f"OpenTelemetry cannot be set up: {_text(error)}"
        log.warning(OFF, why=why, do="check the OTEL_* variables, see docs/traces.md")
        return None
    parts = urlsplit(environ[name].strip())
    shown = f"{parts.scheme}://{parts.hostname}:{parts.port or ''}".rstrip(":")  # without a user or a password
    return SpanSender(export, interrupt, Limits.of(environ), on_outcome, shown)


def _exporter(service: str, broker: Attributes) -> tuple[Exporter, Callable[[], None]]:
    """What sends spans, and what ends that."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - if on
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415 - as above

    exporter, encoder = OTLPSpanExporter(), SpanEncoder(_resource(service), broker)
    # What OpenTelemetry says about its settings is logged; from here on, one line of ours replaces a line for each try.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)

    def export(spans: Sequence[Span]) -> bool:
        return exporter.export(encoder.encode(spans)) is SpanExportResult.SUCCESS

    return export, exporter.shutdown


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _problem(environ: Mapping[str, str], name: str) -> tuple[str | None, str]:
    kind = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if kind not in ("", "otlp"):
        return f"OTEL_TRACES_EXPORTER is {kind!r}", "only otlp and none are supported"
    protocol = next((text for one in PROTOCOLS if (text := environ.get(one, "").strip())), PROTOCOL)
    if protocol != PROTOCOL:
        return (
            f"the OTLP protocol is {protocol!r}",
            f"set {PROTOCOLS[0]}={PROTOCOL}, and an endpoint for it (port 4318)",
        )
    try:
        parts = urlsplit(environ[name].strip())
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    return (None, "") if sound else (f"{name} is not an address", "write it as in http://collector:4318")


def _resource(service: str) -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence over the name from the settings."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - only if traces are on

    ours = Resource({"service.name": service, "service.version": __version__})
    return ours.merge(OTELResourceDetector().detect())


class SpanEncoder:
    """Makes spans of OpenTelemetry's SDK, with the ids and times that they have already. For one thread."""

    def __init__(self, resource: Resource, common: Attributes) -> None:
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415 - only if traces are on
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415 - only sampled messages get here

        ended: list[ReadableSpan] = []

        class GivenId(RandomIdGenerator):
            given = 0

            def generate_span_id(self) -> int:
                return self.given

        class Collector(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span)

        self._ended, self._ids, self._common = ended, GivenId(), common
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(Collector())
        self._tracer = provider.get_tracer("tarry", __version__)

    def encode(self, spans: Sequence[Span]) -> list[ReadableSpan]:
        self._ended.clear()  # what is left of a batch that failed
        for span in spans:
            self._one(span)
        return self._ended.copy()

    def _one(self, span: Span) -> None:
        from opentelemetry import trace as api  # noqa: PLC0415 - only if traces are on

        state = api.TraceState.from_header([span.trace.state]) if span.trace.state else None
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)

        def context(span_id: str) -> api.SpanContext:
            return api.SpanContext(
                int(span.trace.trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags, trace_state=state
            )

        kinds = {"consumer": api.SpanKind.CONSUMER, "producer": api.SpanKind.PRODUCER}
        self._ids.given = int(span.span_id, 16)
        self._tracer.start_span(
            span.name,
            context=api.set_span_in_context(api.NonRecordingSpan(context(span.parent_id))),
            kind=kinds.get(span.kind, api.SpanKind.INTERNAL),
            attributes={**self._common, **span.attributes},
            links=[api.Link(context(span.link_id))] if span.link_id else None,
            start_time=span.start_ns,
        ).end(span.end_ns)

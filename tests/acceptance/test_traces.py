"""One trace shows every attempt at a message and the waits between them, with the figures of the audit."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from tarry.client.pika import Retries, attempt_of
from tests.integration.client.adapters import Consumer
from tests.support.amqp import open_connection
from tests.support.installation import Installation
from tests.support.otlp import PATH, ReceivedSpan, address_of, received_spans
from tests.support.receiver import receiving
from tests.support.router import IN_TIME, Router
from tests.support.tracing import SAMPLED, SPAN, TRACE, UNSAMPLED, application_traces
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series
QUEUE = "quick.invoices"
OPERATIONS = {"decide", "publish", "wait", "process"}
STATE = "vendor=1"
WAITS = """
select round, (extract(epoch from at) * 1000)::bigint, (detail->>'drift_ms')::int
  from transition where retry_id = %s and state = 'returned' order by round
"""
LAST = """
select (extract(epoch from entered_at) * 1000)::bigint, (extract(epoch from returned_at) * 1000)::bigint
  from retry where id = %s
"""


class Recording(Consumer):
    """Fails twice, then succeeds; keeps the headers of every delivery."""

    def __init__(self, url: str, queue: str, headers: list[dict[str, Any]]) -> None:
        super().__init__(url, queue, lambda _attempt, _body: None)
        self.headers = headers

    def run(self) -> None:
        with open_connection(self.url) as connection, Retries(connection) as retries:
            channel = connection.channel()

            @retries.handler(self.queue)
            def handle(_channel: Any, _method: Any, properties: pika.BasicProperties, _body: bytes) -> None:
                self.headers.append(dict(properties.headers or {}))
                if attempt_of(properties, self.queue).number < 3:
                    raise ValueError("too early")

            channel.basic_consume(self.queue, handle)
            self.connections += 1
            while not self.stopping.is_set():
                connection.process_data_events(time_limit=0.05)


def test_one_trace_shows_three_attempts_and_the_waits_between(
    installation: Installation, start: Callable[..., Router], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers: list[dict[str, Any]] = []

    with receiving() as receiver:
        endpoint = address_of(receiver)
        router = start(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_BSP_SCHEDULE_DELAY="100", SERVICE_NAME="invoices")
        installation.declare(QUEUE)
        publish(installation, "unsampled", UNSAMPLED)
        publish(installation, "sampled", SAMPLED)
        with (
            application_traces(OTLPSpanExporter(endpoint + PATH), monkeypatch),
            Recording(installation.amqp_url, QUEUE, headers),
        ):
            wait_for(lambda: len(received_spans(receiver)) >= 9, deadline=90, what="nine spans")
            wait_for(lambda: len(headers) == 6, deadline=90, what="all attempts")
        router.stop()
        found = received_spans(receiver)
    assert {span.trace_id for span in found} == {TRACE}
    assert {span.state for span in found} == {STATE}
    assert len(found) == len({span.span_id for span in found}) == 9

    decides, publishes, waits, attempts = (named(found, name) for name in ("decide", "publish", "wait", "process"))
    assert [len(spans) for spans in (decides, publishes, waits, attempts)] == [2, 2, 2, 3]
    assert {span.parent_id for span in (*decides, *waits, *attempts)} == {SPAN}
    assert [span.parent_id for span in publishes] == [span.span_id for span in decides]
    assert [span.links for span in waits] == [(span.span_id,) for span in publishes]
    assert [span.links for span in attempts] == [(), *((span.span_id,) for span in waits)]
    assert [span.failed for span in attempts] == [True, True, False]
    assert [span.attributes["tarry.attempt"] for span in attempts] == [1, 2, 3]
    assert {span.service for span in (*decides, *publishes, *waits)} == {"invoices"}
    assert {span.service for span in attempts} == {"worker"}

    retry = installation.retry_of("sampled")
    assert {span.attributes["tarry.retry.id"] for span in (*decides, *publishes, *waits)} == {retry}
    delays = [line["delay_ms"] for line in router.logged("scheduled") if line["message_id"] == "sampled"]
    audit = installation.rows(WAITS, retry)
    assert [(span.attributes["tarry.retry.round"], span.end_ns // 1_000_000) for span in waits] == [
        (round_, at) for round_, at, _ in audit
    ]
    assert [span.ms for span in waits] == [delay + drift for delay, (_, _, drift) in zip(delays, audit, strict=True)]
    assert [(waits[-1].start_ns // 1_000_000, waits[-1].end_ns // 1_000_000)] == installation.rows(LAST, retry)
    assert [span.end_ns for span in decides] == [span.start_ns for span in waits]

    described = documented()
    for span in found:
        operation = span.name.partition(" ")[0]
        assert {name for name in span.attributes if operation not in described.get(name, ())} == set(), span.name

    assert {line["trace_id"] for line in router.logged("scheduled")} == {TRACE}
    traced = [(one["traceparent"], one["tracestate"]) for one in headers]
    assert sorted(traced) == sorted([(SAMPLED, STATE), (UNSAMPLED, STATE)] * 3)


def test_a_collector_that_never_answers_delays_no_retry_and_no_shutdown(
    installation: Installation, start: Callable[..., Router]
) -> None:
    messages = [f"m-{number}" for number in range(20)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        router = start(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}",
            OTEL_EXPORTER_OTLP_TIMEOUT="600",
            OTEL_BSP_SCHEDULE_DELAY="20",
            OTEL_BSP_MAX_QUEUE_SIZE="8",
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4",
        )
        installation.declare(QUEUE)
        for one in messages:
            installation.request(QUEUE, one, traceparent=SAMPLED)
        assert sorted(installation.take_ids(QUEUE, len(messages), deadline=90)) == sorted(messages)
        # 20 messages have 60 spans: four are being sent, eight wait, and there is room for no more.
        wait_for(lambda: router.metric("tarry_spans_total", outcome="dropped") > 0, deadline=60, what="dropped spans")
        wait_for(lambda: router.metric("tarry_drift_seconds_count") == len(messages), deadline=60, what="all returns")
        assert router.metric("tarry_spans_total", outcome="sent") == 0
        assert router.ready() == (200, [])
        assert router.stop() < IN_TIME
    assert router.process.poll() == 0
    assert router.wait_logged("spans could not be sent")["why"].startswith("the service ends")


def documented() -> dict[str, set[str]]:
    """The attributes in docs/traces.md, each with the spans that have it."""
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    rows = (line.split("|") for line in page.partition("## Attributes")[2].splitlines() if line.startswith("| `"))
    return {
        name: OPERATIONS if " all" in where else {one for one in OPERATIONS if one in where}
        for _, names, where, *_ in rows
        for name in re.findall(r"`([^`]+)`", names)
    }


def publish(installation: Installation, message_id: str, parent: str) -> None:
    headers = {"traceparent": parent, "tracestate": STATE}
    about = pika.BasicProperties(delivery_mode=2, message_id=message_id, headers=headers)
    installation.channel.basic_publish("", QUEUE, b"an invoice", about, mandatory=True)


def named(spans: list[ReceivedSpan], operation: str) -> list[ReceivedSpan]:
    return sorted((one for one in spans if one.name.startswith(f"{operation} ")), key=lambda one: one.start_ns)

"""The conformance suite for traces: a span for each attempt at a message of a sampled trace, and none for any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tarry.client import Attempt
from tarry.contract.trace import span_id
from tests.integration.client.adapters import Consumer
from tests.integration.client.conformance import ID, RETURNED
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.support.tracing import SAMPLED, SPAN, TRACE, UNSAMPLED, application_traces
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series
SCHEDULED = 1_700_000_000_000


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    with application_traces(exporter, monkeypatch):
        yield exporter


def test_traces_have_a_span_for_each_attempt(
    installation: ClientInstallation, python_adapter: type[Consumer], spans: InMemorySpanExporter
) -> None:
    inside: dict[bytes, int] = {}

    def handle(_attempt: Attempt, body: bytes) -> None:
        inside[body] = api.get_current_span().get_span_context().span_id
        if body == b"again":
            raise ValueError("a secret")

    installation.publish(b"first", "m-1", headers={"traceparent": SAMPLED, "tracestate": "vendor=1"})
    returned = RETURNED | {"traceparent": SAMPLED, "tarry-scheduled-ms": SCHEDULED}
    installation.publish(b"again", "m-2", headers=returned)
    installation.publish(b"unsampled", "m-3", headers={"traceparent": UNSAMPLED})
    installation.publish(b"untraced", "m-4")
    with python_adapter(installation.amqp_url, QUEUE, handle):
        wait_for(lambda: len(inside) == 4, what="four messages to be handled")
        request = installation.take()
    first, again = sorted(spans.get_finished_spans(), key=lambda span: bool(span.links))

    for span in (first, again):
        assert span.name == f"process {QUEUE}"
        assert span.kind is api.SpanKind.CONSUMER
        assert span.parent is not None
        assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert first.context is not None
    assert again.context is not None
    assert first.context.trace_state.to_header() == "vendor=1"
    assert (inside[b"first"], inside[b"again"]) == (first.context.span_id, again.context.span_id)
    assert inside[b"unsampled"] == inside[b"untraced"] == 0

    (link,) = again.links
    assert f"{link.context.span_id:016x}" == span_id("wait", ID, 4, SCHEDULED)
    assert first.links == ()
    assert first.status.status_code is api.StatusCode.UNSET
    assert again.status.status_code is api.StatusCode.ERROR
    assert again.attributes == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": QUEUE,
        "messaging.message.id": "m-2",
        "messaging.message.body.size": 5,
        "tarry.attempt": 4,
        "tarry.retry.id": ID,
        "tarry.retry.round": 4,
        "error.type": "ValueError",
    }
    assert "a secret" not in again.to_json()
    assert request.headers["traceparent"] == SAMPLED

"""The sender of spans: its queue is bounded, nothing waits for the collector, and what is lost is counted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarry import __version__
from tarry.contract.trace import TraceContext
from tarry.router.traces import Span
from tarry.service import tracing
from tarry.service.tracing import LOST, NOT_MADE, OFF, SENT_AGAIN, Limits, SpanSender, span_sender
from tests.support.otlp import PATH, address_of, received_spans
from tests.support.receiver import receiving, status
from tests.support.tracing import SPAN, TRACE
from tests.support.waiting import wait_for

NS = 1_000_000
START = 1_700_000_000_000 * NS


def span(number: int = 1) -> Span:
    return Span(
        TraceContext(TRACE, SPAN, sampled=True, state="vendor=1"),
        "wait",
        "retry.delay.2s",
        "internal",
        f"{number:016x}",
        SPAN,
        START,
        START + 2_034 * NS,
        {"tarry.retry.round": 1, "tarry.held": False, "tarry.queue": "orders"},
        f"{number + 1_000:016x}",
    )


class Collector:
    """An exporter that answers when it is told to."""

    def __init__(self, *, accepts: bool = True, open_: bool = True) -> None:
        self.accepts, self.batches, self.go = accepts, list[int](), threading.Event()
        if open_:
            self.go.set()

    def __call__(self, spans: Sequence[Span]) -> bool:
        self.batches.append(len(spans))
        self.go.wait(30)
        return self.accepts


def sender(collector: Collector, counted: Counter[str], limits: Limits) -> SpanSender:
    def count(outcome: str, number: int) -> None:
        counted[outcome] += number

    return SpanSender(collector, collector.go.set, limits, count)


def test_sender_sends_full_batches_at_once_and_the_rest_when_it_closes() -> None:
    collector, counted = Collector(), Counter[str]()
    made = sender(collector, counted, Limits(queue=100, batch=10, delay_s=600))
    made.add(map(span, range(1, 26)))
    wait_for(lambda: counted["sent"] == 25, what="the spans to be sent")
    made.add([span()])
    asyncio.run(made.close())
    assert collector.batches == [10, 10, 5, 1]
    assert counted == {"sent": 26}


def test_sender_sends_a_few_after_the_delay() -> None:
    collector, counted = Collector(), Counter[str]()
    made = sender(collector, counted, Limits(queue=100, batch=10, delay_s=0.05))
    made.add([span()])
    wait_for(lambda: counted["sent"] == 1, what="the span to be sent")
    asyncio.run(made.close())


def test_sender_never_waits_and_counts_what_does_not_fit() -> None:
    collector, counted = Collector(open_=False), Counter[str]()
    made = sender(collector, counted, Limits(queue=20, batch=10, delay_s=600))
    made.add(map(span, range(10)))
    wait_for(lambda: collector.batches == [10], what="the collector to have a batch")
    made.add(map(span, range(50)))
    assert counted == {"dropped": 30}
    collector.go.set()
    asyncio.run(made.close())
    assert counted == {"dropped": 30, "sent": 30}
    made.add([span()])
    assert counted["dropped"] == 31


def test_sender_ends_in_time_if_the_collector_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LAST_SPANS", 0.2)
    interrupted = threading.Event()
    collector, counted = Collector(open_=False), Counter[str]()
    made = sender(collector, counted, Limits(queue=20, batch=10, delay_s=600))
    made.interrupt = interrupted.set
    made.add(map(span, range(15)))
    wait_for(lambda: collector.batches, what="the collector to have a batch")
    with capture_logs() as logged:
        asyncio.run(made.close())
    assert interrupted.is_set()
    assert counted == {"dropped": 5}
    assert [line["spans"] for line in logged if line["event"] == LOST] == [5]
    collector.go.set()
    wait_for(lambda: not made._thread or not made._thread.is_alive(), what="the thread to end")


def test_sender_takes_spans_that_cannot_be_made_without_an_error() -> None:
    def broken() -> Iterator[Span]:
        yield span(1)
        raise ValueError("not a span")

    collector, counted = Collector(), Counter[str]()
    made = sender(collector, counted, Limits(queue=100, batch=10, delay_s=600))
    with capture_logs() as logged:
        for _ in range(3):
            made.add(broken())
        made.add([span(2)])
        asyncio.run(made.close())
    assert [line["event"] for line in logged] == [NOT_MADE]
    assert counted == {"sent": 4}


def test_sender_logs_an_error_of_the_exporter_once() -> None:
    class Broken(Collector):
        def __call__(self, spans: Sequence[Span]) -> bool:
            super().__call__(spans)
            if not self.accepts:
                raise OSError("no certificate")
            return True

    collector, counted = Broken(accepts=False), Counter[str]()
    made = sender(collector, counted, Limits(queue=100, batch=1, delay_s=600))
    with capture_logs() as logged:
        made.add([span(), span(), span()])
        wait_for(lambda: counted["failed"] == 3, what="three failures")
        collector.accepts = True
        made.add([span()])
        asyncio.run(made.close())
    assert [line["event"] for line in logged] == [LOST, SENT_AGAIN]
    assert logged[0]["why"] == "OSError: no certificate"


def test_sender_logs_only_when_a_collector_fails_and_when_it_is_back() -> None:
    collector, counted = Collector(accepts=False), Counter[str]()
    made = sender(collector, counted, Limits(queue=100, batch=1, delay_s=600))
    with capture_logs() as logged:
        made.add([span(), span()])
        wait_for(lambda: counted["failed"] == 2, what="two failures")
        collector.accepts = True
        made.add([span(), span()])
        wait_for(lambda: counted["sent"] == 2, what="two successes")
        asyncio.run(made.close())
    assert [line["event"] for line in logged] == [LOST, SENT_AGAIN]


def test_sender_of_a_service_speaks_otlp(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counter[str]()
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address_of(receiver))
        made = span_sender(
            "invoices",
            {"server.address": "rabbit", "server.port": 5672},
            lambda outcome, number: counted.update({outcome: number}),
        )
        assert made is not None
        assert made.endpoint == address_of(receiver)
        made.add([span(1), span(2)])
        asyncio.run(made.close())
        first, second = received_spans(receiver)
    assert counted == {"sent": 2}
    assert (first.name, first.trace_id, first.span_id, first.parent_id) == (
        *("wait retry.delay.2s", TRACE),
        *(f"{1:016x}", SPAN),
    )
    assert (first.start_ns, first.ms, first.links) == (START, 2_034, (f"{1_001:016x}",))
    assert (second.span_id, second.links) == (f"{2:016x}", (f"{1_002:016x}",))
    assert first.attributes == {
        "tarry.retry.round": 1,
        "tarry.held": False,
        "tarry.queue": "orders",
        "server.address": "rabbit",
        "server.port": 5672,
    }
    assert (first.service, first.state, first.failed) == ("invoices", "vendor=1", False)


def test_sender_uses_the_standard_names_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "retries")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    found = tracing._resource("tarry").attributes
    assert (found["service.name"], found["deployment.environment"]) == ("retries", "test")
    assert found["service.version"] == __version__


def test_sender_survives_a_collector_that_refuses_and_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counter[str]()

    def count(outcome: str, number: int) -> None:
        counted[outcome] += number

    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address_of(receiver))
        receiver.answers[PATH] = status(400)
        made = span_sender("tarry", {}, count)
        assert made is not None
        made.add([span()])
        asyncio.run(made.close())
        assert counted == {"failed": 1}
        gone = span_sender("tarry", {}, count)
    assert gone is not None
    began = time.monotonic()
    gone.add([span()])
    asyncio.run(gone.close())
    assert time.monotonic() - began < 30  # it would try again for ten seconds, and is interrupted after one and a half
    wait_for(lambda: sum(counted.values()) == 2, what="the span to be counted")
    assert counted["sent"] == 0


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_sender_is_off_unless_the_standard_variables_switch_it_on(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert off(environ, monkeypatch) == []


def off(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[MutableMapping[str, Any]]:
    """What is logged when traces are off with these variables."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with capture_logs() as logged:
        assert span_sender("tarry", {}, lambda *_: None) is None
    return logged


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "http://collector:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:port"}, "http://collector:4318"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "only otlp and none"),
    ],
)
def test_sender_is_off_with_a_reason_and_a_remedy(
    wrong: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = off({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"} | wrong, monkeypatch)
    assert line["event"] == OFF
    assert remedy in line["do"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many"), ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "no")],
)
def test_sender_is_off_if_opentelemetry_refuses_a_variable(variable: str, value: str) -> None:
    """In a process of its own: the SDK reads some of them when it is imported, which the tests have done."""
    code = "from tarry.service.tracing import span_sender; print('made', span_sender('tarry', {}, print))"
    environ = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", variable: value}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert OFF in done.stdout
    assert "check the OTEL_* variables" in done.stdout
    assert done.stdout.endswith("made None\n")


def test_sender_says_how_to_install_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    logged = off({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, monkeypatch)
    assert [line["do"] for line in logged] == ["pip install 'tarry[otel]'"]


def test_commands_do_not_pay_for_traces_when_they_start() -> None:
    code = "import sys, tarry.cli.main, tarry.cli.serve; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "opentelemetry" not in done.stdout.split()


def test_limits_are_those_of_the_standard() -> None:
    assert Limits.of({}) == Limits(2_048, 512, 5.0)
    own = {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "20", "OTEL_BSP_SCHEDULE_DELAY": "250"}
    assert Limits.of(own) == Limits(10, 10, 0.25)
    with capture_logs() as logged:
        assert Limits.of({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}) == Limits()
    assert [line["setting"] for line in logged] == ["OTEL_BSP_MAX_QUEUE_SIZE"]

from __future__ import annotations

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import pick, walk
from tarry.contract import headers as h
from tarry.contract.trace import parse_trace, span_id
from tarry.core.ladder import Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.router.actions import actions
from tarry.router.pipeline import Result
from tarry.router.traces import Span, batch_spans, cancel_spans, return_spans
from tarry.store.rows import RecordedCancel, RecordedReturn, Return
from tests.support.tracing import SAMPLED, SPAN, TRACE, UNSAMPLED
from tests.unit.contract.wire import headers, rejected
from tests.unit.router.test_pipeline import M1, NOW, Fakes, handle


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


def failed(own: dict[str, bytes | str | int]) -> Delivery:
    return rejected("orders", headers(own), message_id=b"m-1")


def spans(result: Result) -> list[Span]:
    return list(batch_spans(result, Names(), Ladder()))


def test_spans_of_a_scheduled_retry(fakes: Fakes) -> None:
    result = handle(fakes.pipeline(), failed({"traceparent": SAMPLED, "tracestate": "a=1"}))
    decide, publish = spans(result)
    assert (decide.name, decide.kind, decide.parent_id) == ("decide retry.scheduled", "consumer", SPAN)
    assert (publish.name, publish.kind, publish.parent_id) == ("publish retry.delay", "producer", decide.span_id)
    assert {one.trace.trace_id for one in (decide, publish)} == {TRACE}
    assert decide.trace.state == "a=1"
    assert decide.start_ns == decide.end_ns == publish.start_ns == NOW * 1_000_000
    assert publish.end_ns - publish.start_ns == int((result.decided_s + result.confirmed_s) * 1e9)
    assert decide.attributes == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "decide",
        "messaging.operation.type": "process",
        "messaging.destination.name": "retry.scheduled",
        "messaging.message.id": "m-1",
        "messaging.message.body.size": len(b"payload"),
        "tarry.retry.id": result.moved[0].item.retry_id,
        "tarry.retry.round": 1,
        "tarry.retry.count": 1,
        "tarry.retry.max": 2,
        "tarry.queue": "orders",
        "tarry.decision": "schedule",
        "tarry.policy": "plain",
        "tarry.error.class": "retryable",
        "tarry.error.type": "rejected",
        "tarry.tier": "retry.delay.2s",
        "tarry.delay_ms": 2_000,
        "tarry.due_ms": NOW + 2_000,
    }
    assert publish.attributes["messaging.operation.type"] == "send"
    assert publish.attributes["tarry.tier"] == "retry.delay.2s"


def test_spans_of_a_review_end_with_its_publish(fakes: Fakes) -> None:
    policy = Policy.model_validate({"name": "never", "schedule": ["2s"], "max_retries": 0})
    decide, publish = spans(handle(fakes.pipeline(policy), failed({"traceparent": SAMPLED})))
    assert (decide.attributes["tarry.decision"], publish.attributes["messaging.destination.name"]) == (
        "review",
        "retry.review",
    )
    assert decide.attributes["tarry.reason"] == "exhausted: 0 of 0 retries spent"
    assert "tarry.due_ms" not in decide.attributes


@pytest.mark.parametrize("own", [{}, {"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}])
def test_spans_are_made_of_sampled_messages_only(fakes: Fakes, own: dict[str, bytes | str | int]) -> None:
    result = handle(fakes.pipeline(), failed(own))
    assert result.moved
    assert spans(result) == []
    assert h.SCHEDULED.encode() not in dict(walk(fakes.published[0].properties.headers or b""))


def test_the_header_returns_as_it_came_with_the_start_of_the_wait(fakes: Fakes) -> None:
    handle(fakes.pipeline(), failed({"traceparent": SAMPLED, "tracestate": "a=1"}))
    found = pick(fakes.published[0].properties.headers or b"", {b"traceparent", b"tracestate", h.SCHEDULED.encode()})
    assert found[b"traceparent"].text() == SAMPLED
    assert found[b"tracestate"].text() == "a=1"
    assert found[h.SCHEDULED.encode()].integer() == NOW


@pytest.mark.parametrize(("own", "trace_id"), [({"traceparent": UNSAMPLED}, TRACE), ({}, None)])
def test_log_lines_name_the_trace_sampled_or_not(
    fakes: Fakes, own: dict[str, bytes | str | int], trace_id: str | None
) -> None:
    (line,) = actions(handle(fakes.pipeline(), failed(own)), Names(), Ladder())
    assert line.get("trace_id") == trace_id


def test_the_span_of_a_wait_is_as_long_as_delay_and_drift() -> None:
    trace = parse_trace(SAMPLED)
    seen = Return(M1, 1, "orders", 1, NOW + 2_000, NOW + 2_034, False, "retry.delay.2s", trace=trace, scheduled_ms=NOW)
    (wait,) = return_spans([RecordedReturn(seen, comes_due=True, by_person=False)])
    assert (wait.name, wait.kind, wait.parent_id) == ("wait retry.delay.2s", "internal", SPAN)
    assert (wait.end_ns - wait.start_ns) == 2_034 * 1_000_000
    assert wait.link_id == span_id("publish", M1, 1, NOW)
    assert (wait.attributes["tarry.drift_ms"], wait.attributes["tarry.outcome"]) == (34, "returned")
    (cancelled,) = cancel_spans([RecordedCancel(seen, comes_due=True)])
    assert cancelled.attributes["tarry.outcome"] == "cancelled"
    untraced = seen._replace(trace=None)
    assert list(return_spans([RecordedReturn(untraced, comes_due=True, by_person=False)])) == []

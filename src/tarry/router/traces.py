"""The spans of sampled messages: what the router decided and published, and how long a message waited.

Pure: what a span says, not how it is sent. All spans of a message are children of the span that published it, so that
one trace shows every attempt and the waits between them. docs/traces.md lists the attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from tarry.contract.message import Request
from tarry.contract.trace import SpanName, TraceContext, span_id
from tarry.core.decide import Schedule, Skip
from tarry.core.ladder import Ladder, first_queue
from tarry.core.names import Names
from tarry.router.pipeline import Result
from tarry.router.plan import RoutePlan
from tarry.store.rows import RecordedCancel, RecordedReturn, Return

Attributes = Mapping[str, str | int | bool]

_NS = 1_000_000


class Span(NamedTuple):
    """One span, complete."""

    trace: TraceContext
    operation: SpanName
    destination: str
    kind: Literal["consumer", "producer", "internal"]
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    link_id: str | None = None
    """A span of the same trace that this one follows from."""

    @property
    def name(self) -> str:
        return f"{self.operation} {self.destination}"


def batch_spans(result: Result, names: Names, ladder: Ladder) -> Iterator[Span]:
    """The spans `decide` and `publish` of each message of a batch that is in a sampled trace."""
    for plan in result.moved:
        item = plan.item
        if isinstance(item, Request) and item.trace is not None and item.trace.sampled:
            yield from _of_plan(plan, item, item.trace, result, (names, ladder))


def _of_plan(
    plan: RoutePlan, request: Request, trace: TraceContext, result: Result, shape: tuple[Names, Ladder]
) -> Iterator[Span]:
    decision, (names, ladder) = plan.decision, shape
    since_ms = plan.now_ms
    scheduled: dict[str, str | int | bool] = {}
    if isinstance(decision, Schedule):
        since_ms = decision.due_ms - decision.itinerary.delay_ms
        scheduled = {
            "tarry.tier": first_queue(decision.itinerary, names, ladder),
            "tarry.delay_ms": decision.itinerary.delay_ms,
            "tarry.due_ms": decision.due_ms,
        }
    decided_ns, began_ns = plan.now_ms * _NS, result.began_ms * _NS
    decide_id = span_id("decide", request.retry_id, plan.round, since_ms)
    common = _about_request(plan, request)
    yield Span(
        trace,
        "decide",
        names.scheduled,
        "consumer",
        decide_id,
        trace.span_id,
        min(began_ns, decided_ns),
        decided_ns,
        {**common, **_operation("decide", "process", names.scheduled), **_about_decision(plan), **scheduled},
    )
    if isinstance(decision, Skip):
        return
    confirmed_ns = began_ns + int((result.decided_s + result.confirmed_s) * 1e9)
    exchange = names.delay if isinstance(decision, Schedule) else names.review
    key = request.origin.routing_key
    yield Span(
        trace,
        "publish",
        exchange,
        "producer",
        span_id("publish", request.retry_id, plan.round, since_ms),
        decide_id,
        decided_ns,
        max(confirmed_ns, decided_ns),
        {
            **common,
            **_operation("publish", "send", exchange),
            **({"messaging.rabbitmq.destination.routing_key": key} if key else {}),
            **scheduled,
        },
    )


def return_spans(found: Iterable[RecordedReturn]) -> Iterator[Span]:
    """The span `wait` of each message that has returned and is in a sampled trace."""
    return (_wait(one.seen, one.seen.trace, "returned") for one in found if one.seen.trace is not None)


def cancel_spans(found: Iterable[RecordedCancel]) -> Iterator[Span]:
    """The same for messages whose wait ended because they were cancelled."""
    return (_wait(one.seen, one.seen.trace, "cancelled") for one in found if one.seen.trace is not None)


def _wait(seen: Return, trace: TraceContext, outcome: str) -> Span:
    return Span(
        trace,
        "wait",
        seen.tier,
        "internal",
        span_id("wait", seen.retry_id, seen.round, seen.scheduled_ms),
        trace.span_id,
        seen.scheduled_ms * _NS,
        seen.at_ms * _NS,
        {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": "wait",
            "messaging.destination.name": seen.tier,
            "tarry.retry.id": seen.retry_id,
            "tarry.retry.round": seen.round,
            "tarry.retry.count": seen.retry_count,
            "tarry.queue": seen.queue,
            "tarry.due_ms": seen.due_ms,
            "tarry.drift_ms": seen.at_ms - seen.due_ms,
            "tarry.held": seen.held,
            "tarry.outcome": outcome,
        },
        span_id("publish", seen.retry_id, seen.round, seen.scheduled_ms),
    )


def _operation(name: str, kind: str, destination: str) -> Attributes:
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
    }


def _about_request(plan: RoutePlan, request: Request) -> Attributes:
    message_id, conversation = request.message_id, request.delivery.properties.correlation_id
    return {
        **({} if message_id is None else {"messaging.message.id": message_id}),
        **(
            {} if conversation is None else {"messaging.message.conversation_id": conversation.decode(errors="replace")}
        ),
        "messaging.message.body.size": len(request.body),
        "tarry.retry.id": request.retry_id,
        "tarry.retry.round": plan.round,
        "tarry.queue": plan.queue,
    }


def _about_decision(plan: RoutePlan) -> Attributes:
    decision = plan.decision
    found: dict[str, str | int | bool] = {"tarry.decision": type(decision).__name__.lower()}
    if decision.policy is not None:
        found["tarry.policy"] = decision.policy.name
    if decision.error_class is not None:
        found["tarry.error.class"] = str(decision.error_class)
    if isinstance(plan.item, Request) and plan.item.failure.error_type is not None:
        found["tarry.error.type"] = plan.item.failure.error_type
    if isinstance(decision, Schedule):
        return found | {"tarry.retry.count": decision.retry_count, "tarry.retry.max": decision.max_retries}
    return found | {"tarry.reason": decision.reason}

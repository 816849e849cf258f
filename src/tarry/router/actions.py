"""One log line for every scheduling action and every success: which message, what and why. Never a payload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import structlog

from tarry.contract.message import trace_field
from tarry.core.decide import Review, Schedule, Skip
from tarry.core.ladder import Ladder, first_queue
from tarry.core.names import Names
from tarry.router.pipeline import Result
from tarry.router.plan import RoutePlan
from tarry.store.rows import SkippedWhenDue, Success

SUCCEEDED = "retry succeeded"
PRESUMED = "retry presumed successful"

Action = Mapping[str, object]
"""The fields of one line; `event` names the action and `level` is set where it is not `info`."""


def actions(result: Result, names: Names, ladder: Ladder) -> Iterator[Action]:
    """One action per message that was moved, not accepted by the broker, sent by the ladder instead, or a duplicate."""
    for plan in result.moved:
        yield _moved(plan, names, ladder)
    for plan, outcome in result.stuck:
        yield {"event": "not accepted, will try again", "level": "warning", **_who(plan), "outcome": outcome.value}
    for plan, outcome in result.detours:
        yield {
            "event": "not accepted by its tier, sent through the ladder",
            "level": "warning",
            **_who(plan),
            "outcome": outcome.value,
        }
    for request in result.duplicates:
        yield {
            "event": "duplicate dropped",
            "retry_id": request.retry_id,
            "round": request.failure.round + 1,
            "message_id": request.message_id,
            "queue": request.origin.queue,
            **trace_field(request),
        }


def success_actions(found: Sequence[Success]) -> Iterator[Action]:
    for one in found:
        yield {
            "event": PRESUMED if one.presumed else SUCCEEDED,
            "retry_id": one.retry_id,
            "round": one.round,
            "message_id": one.message_id,
            "queue": one.queue,
            "attempt": one.attempt,
            "since_first_failure_ms": one.since_first_failure_ms,
        }


def skip_actions(found: Sequence[SkippedWhenDue]) -> Iterator[Action]:
    """Of messages that were skipped when they were due."""
    for one in found:
        yield {
            "event": "skipped",
            "retry_id": one.retry_id,
            "round": one.round,
            "message_id": one.message_id,
            "queue": one.queue,
            "policy": one.policy,
            "error_class": one.error_class,
            "reason": one.reason,
        }


def log_actions(found: Sequence[Action]) -> None:
    """Writes through the general logger; for its many lines the service uses a faster writer, see cli.logs."""
    log = structlog.get_logger()
    for action in found:
        fields = dict(action)
        event, level = fields.pop("event"), str(fields.pop("level", "info"))
        getattr(log, level)(event, **fields)


def _moved(plan: RoutePlan, names: Names, ladder: Ladder) -> Action:
    decision = plan.decision
    if isinstance(decision, Schedule):
        return {
            "event": "scheduled",
            **_who(plan),
            "policy": decision.policy.name,
            "error_class": decision.error_class.value,
            "attempt": decision.retry_count,
            "max_retries": decision.max_retries,
            "delay_ms": decision.itinerary.delay_ms,
            "due_ms": decision.due_ms,
            "tier": first_queue(decision.itinerary, names, ladder),
            **_by_budget(decision),
        }
    if isinstance(decision, Skip):
        return {
            "event": "skipped",
            **_who(plan),
            "policy": decision.policy.name,
            "error_class": decision.error_class.value,
            "reason": decision.reason,
        }
    return {"event": "sent to review", **_who(plan), **_why(decision)}


def _by_budget(decision: Schedule) -> Action:
    if decision.deferred_from_ms is None:
        return {}
    return {"deferred_from_ms": decision.deferred_from_ms, "budget": decision.budget}


def _why(decision: Review) -> Action:
    return {
        "policy": decision.policy.name if decision.policy else None,
        "error_class": decision.error_class.value if decision.error_class else None,
        "exhausted": decision.exhausted,
        "reason": decision.reason,
    }


def _who(plan: RoutePlan) -> Action:
    item = plan.item
    about = {"retry_id": item.retry_id, "round": plan.round, "message_id": item.message_id, "queue": plan.queue}
    return {**about, **found} if (found := trace_field(item)) else about

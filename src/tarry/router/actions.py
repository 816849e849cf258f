"""One log line for every scheduling action: what was decided for which message, and why. Never a payload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import structlog

from tarry.core.decide import Review, Schedule
from tarry.core.ladder import Ladder, first_queue
from tarry.core.names import Names
from tarry.router.flow import Result
from tarry.router.plans import Plan

Action = Mapping[str, object]
"""The fields of one line; `event` names the action and `level` is set where it is not `info`."""


def actions(result: Result, names: Names, ladder: Ladder) -> Iterator[Action]:
    """One each for what was moved, what the broker would not take, and what was a duplicate."""
    for plan in result.moved:
        yield _moved(plan, names, ladder)
    for plan, outcome in result.stuck:
        yield {"event": "not taken, will try again", "level": "warning", **_who(plan), "outcome": outcome.value}
    for plan, outcome in result.detours:
        yield {
            "event": "not taken by its tier, sent by the ladder",
            "level": "warning",
            **_who(plan),
            "outcome": outcome.value,
        }
    for request in result.duplicates:
        yield {
            "event": "duplicate, dropped",
            "retry_id": request.retry_id,
            "round": request.failure.round + 1,
            "message_id": request.message_id,
            "queue": request.origin.queue,
        }


def log_actions(found: Sequence[Action]) -> None:
    """Through the general logger; the service has a faster way for its many lines, see cli.logs."""
    log = structlog.get_logger()
    for action in found:
        fields = dict(action)
        event, level = fields.pop("event"), str(fields.pop("level", "info"))
        getattr(log, level)(event, **fields)


def _moved(plan: Plan, names: Names, ladder: Ladder) -> Action:
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
        }
    return {"event": "to review", **_who(plan), **_why(decision)}


def _why(decision: Review) -> Action:
    return {
        "policy": decision.policy.name if decision.policy else None,
        "error_class": decision.error_class.value if decision.error_class else None,
        "exhausted": decision.exhausted,
        "reason": decision.reason,
    }


def _who(plan: Plan) -> Action:
    item = plan.item
    return {"retry_id": item.retry_id, "round": plan.round, "message_id": item.message_id, "queue": plan.queue}

"""One log line for every scheduling action: what was decided for which message, and why. Never a payload."""

from __future__ import annotations

import structlog

from tarry.contract.request import Request
from tarry.core.decide import Review, Schedule
from tarry.core.ladder import Ladder
from tarry.core.names import Names
from tarry.router.flow import Result
from tarry.router.plans import Plan, first_queue

log = structlog.get_logger()


def log_actions(result: Result, names: Names, ladder: Ladder) -> None:
    """One line each for what was moved, what the broker would not take, and what was a duplicate."""
    for plan in result.moved:
        _log_moved(plan, names, ladder)
    for plan, outcome in result.stuck:
        log.warning("not taken, will try again", outcome=outcome.value, **_who(plan))
    for request in result.duplicates:
        log.info("duplicate", retry_id=request.retry_id, message_id=request.message_id, queue=request.origin.queue)


def _log_moved(plan: Plan, names: Names, ladder: Ladder) -> None:
    decision = plan.decision
    if isinstance(decision, Schedule):
        log.info(
            "scheduled",
            **_who(plan),
            policy=decision.policy.name,
            error_class=decision.error_class.value,
            attempt=decision.retry_count,
            max_retries=decision.max_retries,
            delay_ms=decision.itinerary.delay_ms,
            due_ms=decision.due_ms,
            tier=first_queue(decision.itinerary, names, ladder),
        )
    elif isinstance(decision, Review):
        log.info("to review", **_who(plan), reason=decision.reason, exhausted=decision.exhausted)


def _who(plan: Plan) -> dict[str, object]:
    item = plan.item
    message_id = item.message_id if isinstance(item, Request) else None
    return {"retry_id": item.retry_id, "round": plan.round, "message_id": message_id, "queue": plan.queue}

"""Numbers for an overview: what returns when, how late returns were, what is in review, what each destination has.

All of them are read from indexes of open or recent retries; none reads the whole history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tarry.amqp.management import Management
from tarry.core.json_types import DOCUMENTED
from tarry.core.names import Destination
from tarry.core.queue_scope import QueueScope
from tarry.errors import BrokerError
from tarry.operations.context import OperatorContext
from tarry.operations.pause import known_destinations
from tarry.tasks import in_thread

MINUTES = 60
PATIENCE = 5
"""Timeout of requests to the management API, in seconds."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What is due next, and what happened last."""

    __pydantic_config__ = DOCUMENTED

    due: list[int]
    """Returns that are due in each minute of the next hour."""
    reviewed: list[int]
    """Messages in review, by the minute of the last hour in which they came there; the last number is the latest."""
    returned: int
    """Retries that returned in the last five minutes, and have not failed again since."""
    drift_p50_ms: int | None
    """How late these returns were; null if there were none."""
    drift_p99_ms: int | None
    drift_most_ms: int | None


@dataclass(frozen=True, slots=True)
class DestinationNumbers:
    """One destination of retries."""

    __pydantic_config__ = DOCUMENTED

    name: str
    """A queue, or `exchange:NAME`."""
    depth: int | None
    """Messages in the queue now, or in the last seconds; null for an exchange, and if it is not known."""
    waiting: int
    """Retries that wait to return, by the queue in which they failed."""
    held: int
    in_review: int
    unroutable: int


async def activity(context: OperatorContext, scope: QueueScope | None = None) -> Activity:
    likes = None if scope is None else scope.likes()
    due = await context.store.rows("due_by_minute", scope=likes)
    reviewed = await context.store.rows("reviewed_by_minute", scope=likes)
    ((returned, p50, p99, most),) = await context.store.rows("recent_drift", scope=likes)
    return Activity(_by_minute(due), _by_minute(reviewed)[::-1], returned, p50, p99, most)


def _by_minute(rows: Iterable[tuple[int, int]]) -> list[int]:
    """The numbers of all minutes, from rows of minute and number."""
    found = dict(rows)
    return [found.get(minute, 0) for minute in range(MINUTES)]


async def destination_numbers(
    context: OperatorContext, pattern: str = "*", scope: QueueScope | None = None
) -> list[DestinationNumbers]:
    """Of all destinations that match."""
    labels = [one for one in await known_destinations(context, pattern) if scope is None or scope.allows(one)]
    counts = {(row[0], row[1]): int(row[2]) for row in await context.store.rows("open_by_queue")}
    depths = await _depths(context)
    return [_numbers(label, counts, depths) for label in labels]


def _numbers(label: str, counts: dict[tuple[str, str], int], depths: dict[str, int]) -> DestinationNumbers:
    destination = Destination.of_label(label)
    depth = depths.get(destination.name) if destination.kind == "queue" else None
    waiting, held, in_review, unroutable = (
        counts.get((state, label), 0) for state in ("scheduled", "held", "in_review", "unroutable")
    )
    return DestinationNumbers(label, depth, waiting, held, in_review, unroutable)


async def _depths(context: OperatorContext) -> dict[str, int]:
    """By queue; empty if the management API gives no answer."""
    management = Management(context.address, timeout=PATIENCE)
    try:
        queues = await in_thread(management.queues, "depths")
    except BrokerError:
        return {}
    return {one["name"]: int(one["messages"]) for one in queues if "messages" in one}

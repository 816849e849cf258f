"""Numbers for an overview: what returns when, how late returns were, what is in review, what each destination has.

All of them are read from indexes of open or recent retries; none reads the whole history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tarry.amqp.management import Management
from tarry.core.json_types import DOCUMENTED
from tarry.core.names import Destination
from tarry.core.queue_scope import QueueScope
from tarry.errors import BrokerError
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import is_glob
from tarry.operations.pause import known_destinations
from tarry.tasks import in_thread

MINUTES = 60
Queues = dict[str, dict[str, Any]]
"""What the management API says of each queue, by name."""
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
    oldest: datetime | None = None
    """When the first message failed that waits, is held or is unroutable."""
    rate_in: float | None = None
    """Messages a second that come to the queue; null for an exchange, and if the broker does not say."""
    rate_out: float | None = None
    """Messages a second that its consumers take."""


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
    only = None if is_glob(pattern) else pattern
    rows = await context.store.rows("open_by_queue", queue=only)
    open_ones = {(row[0], row[1]): (int(row[2]), row[3]) for row in rows}
    management = Management(context.address, timeout=PATIENCE)
    queues, traffic = await asyncio.gather(_listed(management.queues), _listed(management.traffic))
    return [_numbers(label, open_ones, queues, traffic) for label in labels]


def _numbers(
    label: str, open_ones: dict[tuple[str, str], tuple[int, datetime]], queues: Queues, traffic: Queues
) -> DestinationNumbers:
    destination = Destination.of_label(label)
    name = destination.name if destination.kind == "queue" else ""
    depth, rates = queues.get(name, {}).get("messages"), traffic.get(name, {}).get("message_stats") or {}
    found = [open_ones.get((state, label)) for state in ("scheduled", "held", "unroutable", "in_review")]
    waiting, held, unroutable, in_review = (one[0] if one else 0 for one in found)
    return DestinationNumbers(
        *(label, None if depth is None else int(depth), waiting, held, in_review, unroutable),
        oldest=min((one[1] for one in found[:3] if one), default=None),
        rate_in=_rate(rates, "publish_details"),
        rate_out=_rate(rates, "deliver_get_details"),
    )


def _rate(rates: Any, name: str) -> float | None:
    """Queues without traffic have no statistics."""
    found = rates.get(name)
    return round(float(found["rate"]), 1) if found and "rate" in found else None


async def _listed(read: Callable[[], list[dict[str, Any]]]) -> Queues:
    """By name; empty if the management API gives no answer."""
    try:
        return {one["name"]: one for one in await in_thread(read, "queues")}
    except BrokerError:
        return {}

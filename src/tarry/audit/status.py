"""Current status: what waits in each queue, what is due next, what needs an operator, and the totals of the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tarry.audit.depths import Depths, QueueDepth
from tarry.core.json_types import DOCUMENTED
from tarry.store.database import Queries, Row
from tarry.store.rows import GRACE, Balance, Drift, ReviewedRow, WaitingRow


@dataclass(frozen=True, slots=True)
class Counts:
    """How many retries are in which state, according to the store."""

    __pydantic_config__ = DOCUMENTED

    waiting: int
    due_in_a_minute: int
    due_in_an_hour: int
    in_review: int
    held: int
    unroutable: int
    claimed: int
    overdue: int
    """More than 30 seconds past their due time, and not seen to return."""
    due: int
    """Past their due time, and not seen to return; includes held and unroutable ones."""
    skipped_in_a_day: int = 0
    """Skipped in the last 24 hours."""


@dataclass(frozen=True, slots=True)
class InTier:
    """One queue that messages wait in."""

    __pydantic_config__ = DOCUMENTED

    tier: str
    open: int | None
    """Retries according to the store; null if it could not be read."""
    depth: int | None
    """Messages on the broker; null if it could not be read."""
    oldest: datetime | None
    next_due: datetime | None


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """One router, as it reported last."""

    __pydantic_config__ = DOCUMENTED

    id: str
    """The actor that it writes to the history."""
    host: str
    process: int
    version: str
    since: datetime
    """When it started."""
    last_report: datetime
    reports: bool
    """False if it stopped reporting without having been shut down: it crashed, hangs, or cannot reach Postgres."""
    rate: float
    """Requests a second, between its last two reports."""
    troubles: list[str]
    """What limits or prevents its work."""
    leader: bool
    """Whether it does the maintenance of the audit for all routers."""


SILENT_AFTER = timedelta(seconds=20)
"""A router that has not reported for this long has stopped reporting: four reports are missing."""


async def read_routers(store: Queries) -> list[RouterStatus]:
    return [RouterStatus(*row) for row in await store.rows("routers", silent_after=SILENT_AFTER)]


@dataclass(frozen=True, slots=True)
class AttemptOutcomes:
    """The outcomes of all rounds that were the same attempt."""

    __pydantic_config__ = DOCUMENTED

    attempt: int
    """0 for a redrive that reset the attempts, and for a return that used no attempt."""
    returned: int
    success: int
    """Reported by their consumers."""
    presumed: int
    """No failure followed within TARRY_PRESUME_AFTER."""
    failed: int
    """Failed again."""
    success_rate: float | None
    """Percentage of `success` and `presumed` among the outcomes that are known; null if none is."""


async def read_outcomes(store: Queries, within: timedelta, queue: str | None = None) -> list[AttemptOutcomes]:
    """Of the rounds that returned within this time, the first attempts first."""
    rows = await store.rows("outcomes_by_attempt", within=within, queue=queue)
    return [
        AttemptOutcomes(attempt, returned, success, presumed, failed, _rate(success + presumed, failed))
        for attempt, returned, success, presumed, failed in rows
    ]


def _rate(good: int, failed: int) -> float | None:
    known = good + failed
    return round(100 * good / known, 1) if known else None


@dataclass(frozen=True, slots=True)
class PausedNow:
    """A destination that is paused or being released; or the paused intake."""

    __pydantic_config__ = DOCUMENTED

    what: str
    state: str
    since: datetime
    held: int | None
    """Held messages; null for the intake."""
    about: str | None


async def read_paused(store: Queries) -> list[PausedNow]:
    return [PausedNow(*row) for row in await store.rows("paused")]


async def read_counts(store: Queries, grace: timedelta = GRACE) -> Counts:
    return Counts(*(await store.rows("counts", grace=grace))[0])


async def read_balance(
    store: Queries, grace: timedelta = GRACE, *, since: datetime | None = None, queue: str | None = None
) -> Balance:
    return Balance(*(await store.rows("balance", grace=grace, since=since, queue=queue))[0])


async def read_drift(store: Queries) -> Drift:
    return Drift(*(await store.rows("drift"))[0])


async def read_waiting(store: Queries, limit: int) -> list[WaitingRow]:
    """The next retries to return."""
    return [WaitingRow(*row) for row in await store.rows("waiting", limit=limit)]


async def read_in_review(store: Queries, limit: int) -> list[ReviewedRow]:
    """The messages that went to review most recently."""
    return [ReviewedRow(*row) for row in await store.rows("reviewed", limit=limit)]


def in_tiers(open_by_tier: Sequence[Row] | None, depths: Depths | None) -> list[InTier]:
    """Every queue that is not empty in the store or on the broker, from the rows of `open_by_tier` and from the broker;
    None means not known. A message that has moved to a later queue of its itinerary is counted in its first queue by
    the store, and in the later one by the broker.
    """
    rows = {row[0] or "": row[1:] for row in open_by_tier or ()}
    live = {**depths.tiers, **depths.relays, **depths.held, **depths.checks, **depths.layover} if depths else {}
    found = []
    for name in sorted({*rows, *(queue for queue, depth in live.items() if depth.messages)}):
        count, oldest, due = rows.get(name, (0, None, None))
        depth = live.get(name, QueueDepth()) if depths else QueueDepth(known=False)
        found.append(
            InTier(name, None if open_by_tier is None else count, depth.messages if depth.known else None, oldest, due)
        )
    return found

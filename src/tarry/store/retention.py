"""Retention: deletes whole days of old history, and finished retries. What is open or in review is never deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from tarry.store.database import PostgresSession

SLICE = 5_000
"""Rows per statement, so that no lock is held for long."""

NOT_COUNTED = timedelta(days=7)
"""History that is not in the statistics yet is kept for so much longer at most."""


_OF_OPERATORS = (
    "prune_actions",
    "prune_diversions",
    "prune_pauses",
    "prune_review_jobs",
    "prune_review_edits",
    "prune_stuck_recoveries",
    "prune_anomalies",
)

_OF_BUDGETS = ("prune_budget_charges", "prune_budget_uses")


@dataclass(frozen=True, slots=True)
class PrunedHistory:
    """What was deleted."""

    partitions: list[str]
    history: int
    """Rows kept when their partition was dropped, because their retry was open then."""
    retries: int
    payloads: int
    actions: int = 0
    """Operators' actions, and the remaining rows of their cancels, pauses and reviews."""
    charges: int = 0
    """Counters of budgets, and the answers to charges."""


async def prune(
    session: PostgresSession,
    older_than: timedelta,
    payloads_older_than: timedelta | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> PrunedHistory:
    """`progress` is called with the number of rows that were deleted one by one so far."""
    row = await session.one("not_counted_for")
    counted = older_than if row is None else max(older_than, min(row[0], older_than + NOT_COUNTED))
    partitions = [row[0] for row in await session.rows("old_partitions", older_than=counted)]
    for name in partitions:
        await session.rows("drop_partition", name=name)
    total = 0

    async def delete(name: str, **parameters: object) -> int:
        nonlocal total
        before = total
        total += await in_slices(session, name, progress=lambda count: progress(before + count), **parameters)
        return total - before

    history = await delete("prune_history", older_than=counted)
    retries = await delete("prune_retries", older_than=counted)
    payloads = 0
    if payloads_older_than is not None:
        payloads = await delete("prune_payloads", older_than=payloads_older_than)
    actions = sum([await delete(name, older_than=older_than) for name in _OF_OPERATORS])
    charges = sum([await delete(name, older_than=older_than) for name in _OF_BUDGETS])
    await delete("prune_budget_subjects")
    return PrunedHistory(partitions, history, retries, payloads, actions, charges)


async def in_slices(
    session: PostgresSession, name: str, *, progress: Callable[[int], None] = lambda _: None, **parameters: object
) -> int:
    """Runs a query that changes at most `limit` rows until there are no more; how many it changed."""
    total = 0
    while count := await session.change(name, **parameters, limit=SLICE):
        total += count
        progress(total)
        if count < SLICE:
            break
    return total

"""Retention: whole days of history, and what is finished. Nothing that is open or in review is ever dropped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tarry.audit.report import Report, report

SLICE = 5_000
"""Rows in one statement, so that no lock is held for long."""


_OF_OPERATORS = ("prune_actions", "prune_diversions", "prune_pauses", "prune_review_jobs", "prune_review_edits")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went."""

    partitions: list[str]
    history: int
    """Rows that had outlived their partition because their retry was open then."""
    retries: int
    payloads: int
    actions: int = 0
    """Of operators, and what is left of their cancels, pauses and reviews."""


def prune(dsn: str, older_than: timedelta, payloads_older_than: timedelta | None = None) -> Pruned:
    with report(dsn) as books:
        return prune_books(books, older_than, payloads_older_than)


def prune_books(books: Report, older_than: timedelta, payloads_older_than: timedelta | None = None) -> Pruned:
    partitions = [row[0] for row in books.rows("old_partitions", older_than=older_than)]
    for name in partitions:
        books.rows("drop_partition", name=name)
    return Pruned(
        partitions=partitions,
        history=_in_slices(books, "prune_history", older_than),
        retries=_in_slices(books, "prune_retries", older_than),
        payloads=_in_slices(books, "prune_payloads", payloads_older_than) if payloads_older_than is not None else 0,
        actions=sum(_in_slices(books, name, older_than) for name in _OF_OPERATORS),
    )


def _in_slices(books: Report, name: str, older_than: timedelta) -> int:
    total = 0
    while count := books.change(name, older_than=older_than, limit=SLICE):
        total += count
        if count < SLICE:
            break
    return total

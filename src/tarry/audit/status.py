"""How things stand right now: what waits where, what is due next, what needs a person. Pure but for the reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tarry.audit.depths import Depth, Depths
from tarry.audit.report import GRACE, Report


@dataclass(frozen=True, slots=True)
class Counts:
    """From the books."""

    waiting: int
    due_in_a_minute: int
    due_in_an_hour: int
    in_review: int
    held: int
    unroutable: int
    claimed: int
    overdue: int


@dataclass(frozen=True, slots=True)
class InTier:
    """One queue that messages wait in: by the books, and on the broker. None is: not known."""

    tier: str
    open: int | None
    depth: int | None
    oldest: datetime | None
    next_due: datetime | None


@dataclass(frozen=True, slots=True)
class PausedNow:
    """A destination that is held or being released; or the intake, which holds nothing."""

    what: str
    state: str
    since: datetime
    held: int | None
    about: str | None


def read_paused(books: Report) -> list[PausedNow]:
    return [PausedNow(*row) for row in books.rows("paused")]


def read_counts(books: Report, grace: timedelta = GRACE) -> Counts:
    return Counts(*books.rows("counts", grace=grace)[0])


def read_tiers(books: Report | None, depths: Depths | None) -> list[InTier]:
    """Every queue that either side has something in. What has gone on to a later queue of its way is in its first by
    the books, and in the later one on the broker.
    """
    return in_tiers(books.rows("open_by_tier") if books else None, depths)


def in_tiers(open_by_tier: Sequence[tuple[Any, ...]] | None, depths: Depths | None) -> list[InTier]:
    """From the rows of that query, and from the broker; None is: not known."""
    rows = {row[0] or "": row[1:] for row in open_by_tier or ()}
    live = {**depths.tiers, **depths.relays, **depths.held} if depths else {}
    found = []
    for name in sorted({*rows, *(queue for queue, depth in live.items() if depth.messages)}):
        count, oldest, due = rows.get(name, (0, None, None))
        depth = live.get(name, Depth()) if depths else Depth(known=False)
        found.append(
            InTier(name, None if open_by_tier is None else count, depth.messages if depth.known else None, oldest, due)
        )
    return found

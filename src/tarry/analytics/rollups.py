"""Counts of the history by hour and day: how they are kept up (`count_new_steps`), and read (`read_statistics`).

What happened in an hour or a day is counted three times: by queue, policy and attempt; by these and the error's
fingerprint; by queue, policy and owner. So the three have the same totals, and none needs a row for each combination of
error and owner. docs/adr/0036-statistics-are-counted-by-difference.md says how the counts stay exact.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import accumulate

from tarry.core.queue_scope import QueueScope, like
from tarry.errors import SettingsError
from tarry.store.database import Queries, Row

SUCCESS_BOUNDS_MS = tuple(
    1_000 * one for one in (1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 259_200, 604_800)
)
"""The upper bounds of the bins of the time to success; a last bin has what took longer. Stored: never change them."""

DRIFT_BOUNDS_MS = (50, 100, 250, 500, 1_000, 2_000, 5_000, 15_000, 60_000)
"""The same for drift."""

MOST_ATTEMPTS = 32
"""Later attempts count as this one."""


class Span(StrEnum):
    """The length of time that one row counts. Hours and days are those of UTC."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        return timedelta(hours=1) if self is Span.HOUR else timedelta(days=1)


class Dimension(StrEnum):
    """What statistics can be divided by."""

    QUEUE = "queue"
    POLICY = "policy"
    ERROR = "error"
    OWNER = "owner"
    ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened, in numbers. A retry counts in the hour of each step, and has one outcome at most."""

    scheduled: int = 0
    """Retries scheduled."""
    returned: int = 0
    """Retries that returned to their queue."""
    succeeded: int = 0
    presumed: int = 0
    """Of the succeeded: presumed, since no failure followed. The others were reported."""
    failed: int = 0
    """Retries that failed again."""
    exhausted: int = 0
    """Messages that went to review because their retries were used up."""
    reviewed: int = 0
    """Messages that went to review for another reason, such as a final error."""
    skipped: int = 0
    success_ms: int = 0
    """The sum of the times from the first failure to the success, of the succeeded."""
    drift_ms: int = 0
    """The sum of the drifts, of the returned."""
    success_bins: tuple[int, ...] = ()
    """How many of the succeeded took up to each of `SUCCESS_BOUNDS_MS`, and longer. Empty by error and by owner."""
    drift_bins: tuple[int, ...] = ()

    @property
    def outcomes(self) -> int:
        """Retries whose outcome is known."""
        return self.succeeded + self.failed

    @property
    def success_rate(self) -> float | None:
        """The share of retries that succeeded, of those whose outcome is known; None if there are none."""
        return self.succeeded / self.outcomes if self.outcomes else None

    @property
    def mean_success_ms(self) -> float | None:
        return self.success_ms / self.succeeded if self.succeeded else None

    @property
    def mean_drift_ms(self) -> float | None:
        return self.drift_ms / self.returned if self.returned else None

    def success_quantile_ms(self, share: float) -> float | None:
        """The time within which this share of the succeeded did, estimated within its bin; None if not known."""
        return quantile(self.success_bins, SUCCESS_BOUNDS_MS, share)

    def drift_quantile_ms(self, share: float) -> float | None:
        return quantile(self.drift_bins, DRIFT_BOUNDS_MS, share)


@dataclass(frozen=True, slots=True)
class Statistic:
    """The counts of one value of each dimension that was asked for; the others are None."""

    counts: Counts
    starts: datetime | None = None
    queue: str | None = None
    policy: str | None = None
    error: str | None = None
    """A fingerprint. Empty, as each of these, if it is not known."""
    owner: str | None = None
    attempt: int | None = None
    """The number of the retry; 0 of a message that failed for the first time and was not retried."""
    other: bool = False
    """Whether it counts everything that has no row of its own: more queues, errors or owners than are kept."""


@dataclass(frozen=True, slots=True)
class StatisticFilter:
    """Which counts. The times are rounded down to whole hours or days, `until` up."""

    since: datetime
    until: datetime
    span: Span = Span.HOUR
    queue: str | None = None
    """A name, or a glob of * and ?."""
    policy: str | None = None
    error: str | None = None
    """A fingerprint, or its beginning."""
    owner: str | None = None
    attempt: int | None = None
    scope: QueueScope | None = None


@dataclass(frozen=True, slots=True)
class KnownError:
    """What a fingerprint stands for."""

    fingerprint: str
    error_class: str | None
    error_type: str | None
    example: str | None


async def read_statistics(
    store: Queries, wanted: StatisticFilter, by: Collection[Dimension] = (), *, by_time: bool = False
) -> list[Statistic]:
    """The counts of this time by these dimensions, ordered by time and then by each dimension."""
    kind = kind_of(wanted, by)
    rows = await store.rows(
        "statistics",
        kind=kind,
        span=wanted.span,
        since=floor(wanted.since, wanted.span),
        until=ceiling(wanted.until, wanted.span),
        by_time=by_time,
        **{f"by_{one}": one in by for one in Dimension},
        **_queues(wanted),
        policy=wanted.policy,
        value=wanted.owner if kind == "owner" else wanted.error,
        is_prefix=kind == "error",
        attempt=wanted.attempt,
    )
    return [_statistic(row, kind) for row in rows]


def kind_of(wanted: StatisticFilter, by: Collection[Dimension]) -> str:
    """The counts that have these dimensions; raises if none have."""
    has_error = wanted.error is not None or Dimension.ERROR in by
    has_attempt = wanted.attempt is not None or Dimension.ATTEMPT in by
    if wanted.owner is None and Dimension.OWNER not in by:
        return "error" if has_error else "queue"
    if has_error or has_attempt:
        raise SettingsError(
            "Statistics by owner are not divided by error or by attempt: use `owner` with `queue` and `policy` only."
        )
    return "owner"


async def read_errors(store: Queries, fingerprints: Sequence[str], wanted: StatisticFilter) -> dict[str, KnownError]:
    """What these fingerprints stand for, by fingerprint, as far as it is known."""
    rows = await store.rows("statistic_errors", fingerprints=list(fingerprints), **_queues(wanted))
    return {row[0]: KnownError(*row) for row in rows}


def _queues(wanted: StatisticFilter) -> dict[str, object]:
    return {
        "queue_like": None if wanted.queue is None else like(wanted.queue),
        "scope": None if wanted.scope is None else wanted.scope.likes(),
    }


def _statistic(row: Row, kind: str) -> Statistic:
    starts, queue, policy, value, attempt, other = row[:6]
    numbers: Row = (*row[6:-2], tuple(row[-2] or ()), tuple(row[-1] or ()))
    counts = Counts(*numbers)
    error, owner = (value, None) if kind == "error" else (None, value)
    return Statistic(counts, starts, queue, policy, error, owner, attempt, other)


def floor(moment: datetime, span: Span) -> datetime:
    """The beginning of the hour or day, of UTC, that this moment is in."""
    whole = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return whole if span is Span.HOUR else whole.replace(hour=0)


def ceiling(moment: datetime, span: Span) -> datetime:
    whole = floor(moment, span)
    return whole if whole == moment else whole + span.length


def quantile(bins: Sequence[int], bounds: Sequence[int], share: float) -> float | None:
    """A quantile of a histogram, interpolated within its bin. The last bin has no upper bound, and counts as its lower
    one. None if the histogram is empty.
    """
    total = sum(bins)
    if not total:
        return None
    wanted = share * total
    for place, reached in enumerate(accumulate(bins)):
        if reached >= wanted and bins[place]:
            low = bounds[place - 1] if place else 0
            high = bounds[place] if place < len(bounds) else low
            return low + (high - low) * (wanted - (reached - bins[place])) / bins[place]
    return float(bounds[-1])

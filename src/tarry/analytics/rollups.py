"""Counts of the history by hour and day: how they are kept up (`count_new_steps`), and read (`read_statistics`).

What happened in an hour or a day is counted three times: by queue, policy and attempt; by these and the error's
fingerprint; by queue, policy and owner. So the three have the same totals, and none needs a row for each combination of
error and owner. docs/adr/0036-statistics-are-counted-by-difference.md says how the counts stay exact.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import accumulate, zip_longest
from uuid import UUID

import structlog

from tarry.core.queue_scope import QueueScope, like
from tarry.errors import AuditError, SettingsError
from tarry.store.database import PostgresSession, Queries, Row
from tarry.store.retention import in_slices

log = structlog.get_logger()

SUCCESS_BOUNDS_MS = tuple(
    1_000 * one for one in (1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 259_200, 604_800)
)
"""The upper bounds of the bins of the time to success; a last bin has what took longer. Stored: never change them."""

DRIFT_BOUNDS_MS = (50, 100, 250, 500, 1_000, 2_000, 5_000, 15_000, 60_000)
"""The same for drift."""

MOST_ATTEMPTS = 32
"""Later attempts count as this one."""


class StatisticSpan(StrEnum):
    """The length of time that one row counts. Hours and days are those of UTC."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        return timedelta(hours=1) if self is StatisticSpan.HOUR else timedelta(days=1)


class Dimension(StrEnum):
    """What statistics can be divided by."""

    QUEUE = "queue"
    POLICY = "policy"
    ERROR = "error"
    OWNER = "owner"
    ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True)
class StatisticCounts:
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

    def __add__(self, other: StatisticCounts) -> StatisticCounts:
        pairs = ((getattr(self, one.name), getattr(other, one.name)) for one in fields(self))
        sums: Row = tuple(a + b if isinstance(a, int) else _added(a, b) for a, b in pairs)
        return StatisticCounts(*sums)

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

    counts: StatisticCounts
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
    cost: int = 0
    """Its returns, each times the cost of its policy."""
    place: int = 1
    """By how much it counts, of all times together: 1 for the largest."""


@dataclass(frozen=True, slots=True)
class StatisticFilter:
    """Which counts. The times are rounded down to whole hours or days, `until` up."""

    since: datetime
    until: datetime
    span: StatisticSpan = StatisticSpan.HOUR
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
    store: Queries,
    wanted: StatisticFilter,
    by: Collection[Dimension] = (),
    *,
    by_time: bool = False,
    costs: Mapping[str, int] | None = None,
    most: int | None = None,
) -> list[Statistic]:
    """The counts of this time by these dimensions, ordered by time and then by each dimension. `costs` are those of
    policies, 1 if not given. With `most`, only the largest, each with all its times.
    """
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
        costs=json.dumps(dict(costs or {})),
        most=most,
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
    numbers: Row = (*row[6:-4], tuple(row[-4] or ()), tuple(row[-3] or ()))
    counts = StatisticCounts(*numbers)
    error, owner = (value, None) if kind == "error" else (None, value)
    return Statistic(counts, starts, queue, policy, error, owner, attempt, other, *row[-2:])


def _added(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The sum of two histograms, of which each may be empty."""
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


def floor(moment: datetime, span: StatisticSpan) -> datetime:
    """The beginning of the hour or day, of UTC, that this moment is in."""
    whole = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return whole if span is StatisticSpan.HOUR else whole.replace(hour=0)


def ceiling(moment: datetime, span: StatisticSpan) -> datetime:
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


BATCH = 100_000
"""Steps that are counted in one transaction; more if one transaction wrote more."""

BATCH_BEFORE = 5_000
"""Retries of the history before that are counted in one transaction."""

MOST_SERIES = 1_000
"""In each hour and day, so many pairs of queue and policy, errors of these, and owners of these have rows of their own:
the first. What they do not include counts as other.
"""

EVERY_ROUND = 1_000_000_000
"""More than any retry has rounds."""


@dataclass(frozen=True, slots=True)
class StatisticsProgress:
    """How far the history has been counted."""

    counted_until: datetime
    """What was written by then is counted."""
    began_at: datetime
    """When counting began. What was written before then is the history before."""
    before_day: date | None
    """The day of the history before that is being counted; days after it are complete. None if all are."""
    oldest_day: date | None
    """The first day of the history before."""
    read_at: datetime | None = None
    """When this was read, by the clock of Postgres."""

    @property
    def lag(self) -> timedelta:
        """How far statistics were behind then."""
        return max(timedelta(0), (self.read_at or self.counted_until) - self.counted_until)

    def late(self, now: datetime) -> str | None:
        """Since when steps are not counted, if that is long ago."""
        if now - self.counted_until <= LATE:
            return None
        return f"steps since {self.counted_until.astimezone(UTC):%Y-%m-%d %H:%M} UTC are not counted yet"

    def describe(self, now: datetime) -> list[str]:
        """What is not counted yet, in words."""
        late = self.late(now)
        found = [] if late is None else [late]
        if self.before_day is not None:
            oldest = "" if self.oldest_day is None else f"; it begins on {self.oldest_day}"
            found.append(
                f"the history from before {self.began_at:%Y-%m-%d} is being counted, the latest day first: "
                f"{self.before_day} is next{oldest}"
            )
        return found


LATE = timedelta(minutes=10)
"""Statistics that are further behind say so."""


@dataclass(frozen=True, slots=True)
class StatisticsRules:
    """How long statistics are kept; None: forever. The names of errors are kept as long as days."""

    keep_hours: timedelta | None = timedelta(days=60)
    keep_days: timedelta | None = timedelta(days=730)


@dataclass(slots=True)
class _Position:
    """A row of the query `statistic_position`."""

    cluster: int
    system_identifier: int | None
    transition_xid: int
    last_id: int
    since_id: int
    began_at: datetime
    before_id: int
    before_day: date | None
    before_retry: UUID | None
    oldest_day: date | None
    counted_until: datetime
    bound: int
    """Every transaction before this one is over: its steps are visible from now on, or never."""
    next_xid: int
    now: datetime

    @classmethod
    async def read(cls, session: PostgresSession) -> _Position:
        row = await session.one("statistic_position")
        assert row is not None  # noqa: S101 - this query always has an answer
        xid, bound, next_xid = (int(row[place] or 0) for place in (2, -3, -2))
        values: Row = (*row[:2], xid, *row[3:-3], bound, next_xid, row[-1])
        return cls(*values)

    @property
    def is_of_another_cluster(self) -> bool:
        """Whether the database was restored to a cluster whose transaction ids are others."""
        return self.system_identifier != self.cluster or self.transition_xid > self.next_xid


async def count_new_steps(session: PostgresSession, *, seconds: float = 10.0, batch: int = BATCH) -> StatisticsProgress:
    """Counts the steps of the history that are not counted yet, in batches, for so many seconds at most; then, in the
    time that is left, the history from before counting began. The counts of a batch and the position are committed
    together, so after a crash each step is counted once. The caller has the lock.
    """
    ends = time.monotonic() + seconds
    position = await _Position.read(session)
    if position.system_identifier is None:
        await session.change("begin_statistics")
        position = await _Position.read(session)
    if position.is_of_another_cluster:
        await _count_restored(session, position)
    while await _count_next(session, batch) and time.monotonic() < ends:
        pass
    while await _count_before(session) and time.monotonic() < ends:  # one slice at least, however much is new
        pass
    position = await _Position.read(session)
    return StatisticsProgress(
        position.counted_until, position.began_at, position.before_day, position.oldest_day, position.now
    )


async def read_progress(store: Queries) -> StatisticsProgress | None:
    """How far the history has been counted; None if counting has not begun."""
    row = await store.one("statistic_position")
    return None if row is None or row[1] is None else StatisticsProgress(row[10], row[5], row[7], row[9], row[-1])


async def prune_statistics(session: PostgresSession, rules: StatisticsRules) -> int:
    """Deletes old statistics. What is late for an hour or day that is deleted leaves a difference of its own, which the
    next call deletes.
    """
    total = 0
    for span, keep in ((StatisticSpan.HOUR, rules.keep_hours), (StatisticSpan.DAY, rules.keep_days)):
        if keep is not None:
            total += await in_slices(session, "prune_statistics", span=span, older_than=keep)
    if rules.keep_days is not None:
        await in_slices(session, "prune_statistic_errors", older_than=rules.keep_days)
    return total


async def _count_next(session: PostgresSession, batch: int) -> bool:
    """Counts the next steps, whole transactions. Returns whether there are more."""
    async with session.transaction():
        was = await _Position.read(session)
        row = await session.one(
            "statistic_new_steps",
            after=str(was.transition_xid),
            bound=str(was.bound),
            since_id=was.since_id,
            limit=batch,
        )
        assert row is not None  # noqa: S101 - it counts
        number, last_xid, last_id, last_at, ids, lows, highs, waiting_since = row
        is_full = number >= batch
        reached = int(last_xid) if is_full else was.bound - 1
        if ids:
            await _count_rounds(session, was, (ids, lows, highs), until_id=was.since_id, until_xid=str(reached))
        await _save(
            session,
            was,
            transition_xid=str(reached),
            last_id=max(was.last_id, last_id),
            counted_until=min(was.now, last_at if is_full else waiting_since or was.now),
        )
    return bool(is_full)


async def _count_before(session: PostgresSession) -> bool:
    """Counts some retries in one day of the history before. Returns whether there is more of it."""
    async with session.transaction():
        was = await _Position.read(session)
        if was.before_day is None:
            return False
        since = datetime.combine(was.before_day, datetime.min.time(), UTC)
        day = {"since": since, "until": since + timedelta(days=1)}
        row = await session.one(
            "statistic_steps_before", **day, before_id=was.before_id, after=was.before_retry, limit=BATCH_BEFORE
        )
        ids = row[0] if row else []
        if ids:
            await _count_rounds(
                session, was, _whole(ids), **day, counted_id=0, counted_xid="0", until_id=was.before_id, until_xid="0"
            )
        is_last = was.oldest_day is None or was.before_day <= was.oldest_day
        if len(ids) == BATCH_BEFORE:
            await _save(session, was, before_retry=ids[-1])
        else:
            earlier = None if is_last else was.before_day - timedelta(days=1)
            await _save(session, was, before_day=earlier, before_retry=None)
            if is_last:
                log.info("statistics have the whole history", since=str(was.oldest_day))
    return True


async def _count_restored(session: PostgresSession, was: _Position) -> None:
    """The database was restored to another cluster, which has transaction ids of its own. Counts what was written
    before the backup, or since the restore, and is not counted; then it goes on by the new ids.
    """
    log.warning("the database was restored to another cluster: statistics go on with its transactions")
    async with session.transaction():
        row = await session.one("event_cut")
        assert row is not None  # noqa: S101 - it always has an answer
        cut_id, cut_xid, _ = row
        found = await session.one(
            "statistic_restored_steps",
            cut=cut_id,
            since_id=was.since_id,
            after=str(was.transition_xid),
            last_id=was.last_id,
        )
        if found and found[0]:
            await _count_rounds(session, was, _whole(found[0]), until_id=cut_id, until_xid="0")
        await _save(session, was, transition_xid=cut_xid, since_id=cut_id, last_id=cut_id)


def _whole(ids: Sequence[UUID]) -> tuple[Sequence[UUID], list[int], list[int]]:
    """All rounds of these retries."""
    return ids, [0] * len(ids), [EVERY_ROUND] * len(ids)


async def _count_rounds(
    session: PostgresSession,
    was: _Position,
    touched: tuple[Sequence[UUID], Sequence[int], Sequence[int]],
    **parameters: object,
) -> None:
    ids, lows, highs = touched
    counted = {"counted_id": was.since_id, "counted_xid": str(was.transition_xid), "counted_last": was.last_id}
    await session.rows(
        "count_rounds",
        ids=ids,
        lows=lows,
        highs=highs,
        **{"since": None, "until": None, **counted, **parameters},
        success_bounds=list(SUCCESS_BOUNDS_MS),
        drift_bounds=list(DRIFT_BOUNDS_MS),
        most_attempts=MOST_ATTEMPTS,
        most_series=MOST_SERIES,
    )


async def _save(session: PostgresSession, was: _Position, **changed: object) -> None:
    """Raises if another process has counted meanwhile: then the transaction must be rolled back."""
    names = ("transition_xid", "last_id", "since_id", "before_day", "before_retry", "counted_until")
    kept = {name: getattr(was, name) for name in names} | {"transition_xid": str(was.transition_xid)}
    saved = await session.change(
        "save_statistic_position",
        **kept | changed,
        was_xid=str(was.transition_xid),
        was_since=was.since_id,
        was_day=was.before_day,
        was_retry=was.before_retry,
    )
    if not saved:
        raise AuditError(
            "Statistics were counted by two processes at once. This pass was undone; the next one goes on."
        )

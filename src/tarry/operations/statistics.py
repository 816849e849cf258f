"""Statistics: how many retries helped, how long that took and what it cost; by queue, policy, error, owner and attempt.

They are counts of the history that the service keeps up (`tarry.analytics.rollups`), so no question reads the history.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from tarry.analytics.rollups import (
    Dimension,
    KnownError,
    Statistic,
    StatisticCounts,
    StatisticFilter,
    StatisticSpan,
    ceiling,
    floor,
    read_errors,
    read_progress,
    read_statistics,
)
from tarry.core.json_types import DOCUMENTED
from tarry.errors import SettingsError
from tarry.operations.context import OperatorContext
from tarry.topology.model import Topology

MOST = 1_000
"""Values that one answer can have."""

MOST_ROWS = 20_000
"""Rows that one answer can have: with many hours or days, fewer values."""

BY_THE_HOUR = timedelta(days=3)
"""A longer time is counted in whole days, unless hours are asked for."""

NOT_COUNTED = "statistics have not been counted yet: `tarry serve` counts them in its audit passes"


@dataclass(frozen=True, slots=True)
class StatisticRow:
    """What happened to the retries of one value of each dimension that was asked for. The other dimensions are null."""

    __pydantic_config__ = DOCUMENTED

    starts: datetime | None
    """The beginning of the hour or day, of UTC; null if all are counted together."""
    queue: str | None
    """Empty, as each of these, if it is not known."""
    policy: str | None
    error: str | None
    """The fingerprint of the error."""
    error_class: str | None
    error_type: str | None
    example: str | None
    """The reason of one message with this error."""
    owner: str | None
    attempt: int | None
    """The number of the retry, at most 32; 0: messages that failed once and were not retried."""
    other: bool
    """Whether it counts what has no row of its own, since an hour or day has 1,000 rows of its kind at most."""
    scheduled: int
    returned: int
    succeeded: int
    """Returned, and reported as succeeded or presumed so."""
    presumed: int
    """Of the succeeded: presumed, since no failure followed."""
    failed: int
    """Returned, and failed again."""
    exhausted: int
    """In review because their retries were used up."""
    reviewed: int
    """In review for another reason."""
    skipped: int
    success_rate: float | None
    """The share of the returned whose outcome is known that succeeded, in percent; null if there are none."""
    cost: int | None
    """Each return times the `cost` of its policy, as the policies are now; null if the topology files have errors."""
    success_mean_ms: int | None
    """From the first failure to the success."""
    success_p50_ms: int | None
    """Estimated, as the next; null by error and by owner."""
    success_p95_ms: int | None
    drift_mean_ms: int | None
    """How late returns were."""
    drift_p50_ms: int | None
    drift_p99_ms: int | None


@dataclass(frozen=True, slots=True)
class StatisticsReport:
    """Statistics of a time, which begins and ends with a whole hour or day."""

    __pydantic_config__ = DOCUMENTED

    since: datetime
    until: datetime
    span: StatisticSpan
    """What was counted together: `hour` or `day`."""
    by: list[Dimension]
    total: StatisticRow
    rows: list[StatisticRow]
    """By time, if that was asked for, and then the largest first."""
    more: bool
    """Whether there are more values than these, the largest. `total` has all."""
    notes: list[str]
    """What is not counted yet."""


def suitable_span(since: datetime, until: datetime) -> StatisticSpan:
    return StatisticSpan.HOUR if until - since <= BY_THE_HOUR else StatisticSpan.DAY


async def statistics(
    context: OperatorContext,
    wanted: StatisticFilter,
    by: Sequence[Dimension] = (),
    *,
    by_time: bool = False,
    limit: int = MOST,
) -> StatisticsReport:
    wanted = _whole(wanted)
    costs = _costs(context)
    most = min(limit, MOST, max(1, MOST_ROWS // _lengths(wanted))) if by_time else min(limit, MOST)
    async with context.store.page() as store:
        found = await read_statistics(store, wanted, by, by_time=by_time, costs=costs, most=most + 1)
        total = await read_statistics(store, wanted, costs=costs)
        rows = sorted((one for one in found if one.place <= most), key=_order)
        errors = await read_errors(store, sorted({one.error for one in rows if one.error}), wanted)
        progress = await read_progress(store)
    named = [_row(one, errors.get(one.error or ""), has_costs=costs is not None) for one in rows]
    return StatisticsReport(
        since=wanted.since,
        until=wanted.until,
        span=wanted.span,
        by=list(by),
        total=_row(total[0] if total else Statistic(StatisticCounts()), None, has_costs=costs is not None),
        rows=named,
        more=len(rows) < len(found),
        notes=[NOT_COUNTED] if progress is None else progress.describe(datetime.now(UTC)),
    )


def _whole(wanted: StatisticFilter) -> StatisticFilter:
    """With the times that are counted."""
    since, until = floor(wanted.since, wanted.span), ceiling(wanted.until, wanted.span)
    if since >= until:
        raise SettingsError("The time begins after its end: give a `since` that is before `until`.")
    return replace(wanted, since=since, until=until)


def _lengths(wanted: StatisticFilter) -> int:
    return max(1, (wanted.until - wanted.since) // wanted.span.length)


def _costs(context: OperatorContext) -> Mapping[str, int] | None:
    files = context.files
    return {one.name: one.cost for one in files.policies if one.cost != 1} if isinstance(files, Topology) else None


def _order(one: Statistic) -> tuple[datetime, int]:
    return one.starts or datetime.min.replace(tzinfo=UTC), one.place


def _row(one: Statistic, error: KnownError | None, *, has_costs: bool) -> StatisticRow:
    counts, rate = one.counts, one.counts.success_rate
    return StatisticRow(
        starts=None if one.starts is None else one.starts.astimezone(UTC),
        queue=one.queue,
        policy=one.policy,
        error=one.error,
        error_class=error.error_class if error else None,
        error_type=error.error_type if error else None,
        example=error.example if error else None,
        owner=one.owner,
        attempt=one.attempt,
        other=one.other,
        scheduled=counts.scheduled,
        returned=counts.returned,
        succeeded=counts.succeeded,
        presumed=counts.presumed,
        failed=counts.failed,
        exhausted=counts.exhausted,
        reviewed=counts.reviewed,
        skipped=counts.skipped,
        success_rate=None if rate is None else round(100 * rate, 1),
        cost=one.cost if has_costs else None,
        success_mean_ms=_ms(counts.mean_success_ms),
        success_p50_ms=_ms(counts.success_quantile_ms(0.5)),
        success_p95_ms=_ms(counts.success_quantile_ms(0.95)),
        drift_mean_ms=_ms(counts.mean_drift_ms),
        drift_p50_ms=_ms(counts.drift_quantile_ms(0.5)),
        drift_p99_ms=_ms(counts.drift_quantile_ms(0.99)),
    )


def _ms(value: float | None) -> int | None:
    return None if value is None else round(value)


DETAILS = ("error_class", "error_type", "example")
"""Columns of a CSV that only statistics by error have."""


def statistics_csv(report: StatisticsReport) -> str:
    """A line for each row, with the columns of the dimensions that were asked for and all numbers."""
    made = io.StringIO()
    columns = list(_columns(report))
    writer = csv.DictWriter(made, columns, extrasaction="ignore", lineterminator="\r\n")
    writer.writeheader()
    for row in report.rows:
        writer.writerow({name: _cell(value) for name, value in asdict(row).items()})
    return made.getvalue()


def _columns(report: StatisticsReport) -> Iterator[str]:
    dimensions: Collection[str] = {str(one) for one in report.by}
    if any(row.starts for row in report.rows):
        yield "starts"
    for name in StatisticRow.__dataclass_fields__:
        is_detail, is_dimension = name in DETAILS, name in [str(one) for one in Dimension]
        if name == "starts" or (is_detail and "error" not in dimensions) or (is_dimension and name not in dimensions):
            continue
        yield name


def _cell(value: object) -> object:
    """A spreadsheet would take a text that begins like this for a formula."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return int(value) if isinstance(value, bool) else value


def describe_values(row: StatisticRow, by: Iterable[Dimension]) -> list[str]:
    """The values of these dimensions, for a table."""
    nameless = "(others)" if row.other else "(none)"
    return [str(getattr(row, one)) or nameless for one in by]

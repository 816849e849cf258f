"""Statistics: which retries help, over time, by attempt, queue, policy and error; what they cost; and their export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, cast

from markupsafe import Markup
from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response

from tarry.analytics.rollups import Dimension, StatisticFilter, StatisticSpan
from tarry.core.durations import humanise
from tarry.operations.statistics import MOST, StatisticRow, StatisticsReport, describe_values, suitable_span
from tarry.web.api.parameters import Glob, length_of
from tarry.web.api.statistics import as_csv
from tarry.web.dashboard import charts
from tarry.web.dashboard.visit import Visit, validated

TIMES = {"24h": "24 hours", "3d": "3 days", "7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "a year"}
SHOWN = 10
"""Queues, policies and errors that the page lists; the export has all."""

PARTS = (Dimension.ATTEMPT, Dimension.QUEUE, Dimension.POLICY, Dimension.ERROR)
NOT_BY_OWNER = (Dimension.ATTEMPT, Dimension.ERROR)
"""What is not counted together with owners."""


class StatisticsWanted(BaseModel):
    """The fields of the form, with the checks of the HTTP API."""

    since: Literal["24h", "3d", "7d", "30d", "90d", "365d"] = "7d"
    queue: Glob | None = None
    policy: Glob | None = None
    error: Glob | None = None
    owner: Glob | None = None

    def filter(self, now: datetime) -> StatisticFilter:
        since = now - length_of(self.since)
        return StatisticFilter(since, now, suitable_span(since, now), **self.model_dump(exclude={"since"}))


class ExportWanted(StatisticsWanted):
    """What to export."""

    by: Dimension | None = None
    format: Literal["csv", "json"] = "csv"


@dataclass(frozen=True, slots=True)
class Line:
    """One value of a dimension: its numbers in all, and its success rate over time."""

    name: str
    value: str | int | None
    title: str | None
    """The type of an error, whose name is its fingerprint."""
    about: str | None
    returned: int
    succeeded: int
    failed: int
    exhausted: int
    cost: int | None
    success_ms: int
    trend: Markup

    @property
    def success_rate(self) -> float | None:
        known = self.succeeded + self.failed
        return round(100 * self.succeeded / known, 1) if known else None

    @property
    def mean_success_ms(self) -> int | None:
        return round(self.success_ms / self.succeeded) if self.succeeded else None


@dataclass(frozen=True, slots=True)
class Part:
    """The table of one dimension."""

    by: Dimension
    lines: list[Line]
    more: bool


async def show(visit: Visit) -> Response:
    asked = {name: visit.asked(name) for name in StatisticsWanted.model_fields}
    form = validated(StatisticsWanted, asked)
    wanted = form.filter(visit.now)
    whole = await visit.operations.statistics(wanted, by_time=True)
    parts = [await _part(visit, wanted, one) for one in PARTS if form.owner is None or one not in NOT_BY_OWNER]
    return visit.render(
        "statistics.html",
        asked=asked | {"since": form.since},
        times=TIMES,
        report=whole,
        charts=_charts(whole),
        parts=parts,
    )


async def _part(visit: Visit, wanted: StatisticFilter, by: Dimension) -> Part:
    limit = MOST if by is Dimension.ATTEMPT else SHOWN
    found = await visit.operations.statistics(wanted, [by], by_time=True, limit=limit)
    grouped: dict[tuple[object, bool], list[StatisticRow]] = {}
    for row in found.rows:
        grouped.setdefault((getattr(row, by), row.other), []).append(row)
    lines = [_line(rows, by, found) for rows in grouped.values()]
    if by is Dimension.ATTEMPT:
        lines.sort(key=lambda one: cast("int", one.value))
    else:
        lines.sort(key=lambda one: (-one.returned - one.exhausted, one.name))
    return Part(by, lines, found.more)


def _line(rows: Sequence[StatisticRow], by: Dimension, report: StatisticsReport) -> Line:
    first = rows[0]
    (name,) = describe_values(first, [by])
    costs = [one.cost for one in rows if one.cost is not None]
    rates = {one.starts: one.success_rate for one in rows}
    line = Line(
        name=name,
        value=None if first.other else getattr(first, by),
        title=first.error_type or None,
        about=first.example or None,
        returned=sum(one.returned for one in rows),
        succeeded=sum(one.succeeded for one in rows),
        failed=sum(one.failed for one in rows),
        exhausted=sum(one.exhausted for one in rows),
        cost=sum(costs) if costs else None,
        success_ms=sum((one.success_mean_ms or 0) * one.succeeded for one in rows),
        trend=Markup(),
    )
    rate = line.success_rate
    label = "no outcome is known" if rate is None else f"{rate:g} % succeeded"
    return replace(line, trend=charts.rate_line([rates.get(one) for one in _starts(report)], label))


def _starts(report: StatisticsReport) -> list[datetime]:
    """All hours or days of the time."""
    number = (report.until - report.since) // report.span.length
    return [report.since + place * report.span.length for place in range(number)]


def _charts(report: StatisticsReport) -> dict[str, Markup]:
    found = {row.starts: row for row in report.rows}
    rows = [found.get(one) for one in _starts(report)]
    total, each = report.total, "an hour" if report.span is StatisticSpan.HOUR else "a day"
    moment = "%m-%d %H:%M" if report.span is StatisticSpan.HOUR else "%Y-%m-%d"
    start, end = (f"{one:{moment}}" for one in (report.since, report.until))
    rate = "no outcome is known" if total.success_rate is None else f"{total.success_rate:g} % in all; the top is 100 %"
    within = [
        [row.success_p50_ms if row else None for row in rows],
        [row.success_p95_ms if row else None for row in rows],
    ]
    longest = max((one for line in within for one in line if one is not None), default=0)
    outcomes = [(row.succeeded, row.failed) if row else (0, 0) for row in rows]
    words = ("succeeded", "failed again")
    made = {
        "Success rate": charts.lines(
            [[row.success_rate if row else None for row in rows]], "Success rate", start, rate, end, top=100
        ),
        "Outcomes": charts.stacked(outcomes, "Outcomes", start, end, each=each, words=words),
        "Time to success": charts.lines(
            within,
            "Time to success",
            start,
            f"half within (line), 95 % within (dashed); up to {humanise(longest)}",
            end,
        ),
    }
    if total.cost is not None:
        costs = [row.cost or 0 if row else 0 for row in rows]
        made["Cost"] = charts.bars(costs, "Cost", start, end, each=each)
    return made


async def export(visit: Visit) -> Response:
    """All rows, by hour or day."""
    form = validated(ExportWanted, {name: visit.asked(name) for name in ExportWanted.model_fields})
    fields = form.model_dump(exclude={"by", "format"})
    wanted = StatisticsWanted(**fields).filter(visit.now)
    found = await visit.operations.statistics(wanted, [form.by] if form.by else [], by_time=True)
    if form.format == "csv":
        return as_csv(found)
    headers = {"Content-Disposition": f'attachment; filename="tarry-statistics-{found.since:%Y-%m-%d}.json"'}
    body = TypeAdapter(StatisticsReport).dump_json(found, indent=2)
    return Response(body, media_type="application/json", headers=headers)

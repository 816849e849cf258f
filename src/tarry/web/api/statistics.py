"""Statistics of the history, as JSON and as CSV."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from tarry.analytics.rollups import MOST_ATTEMPTS, Dimension, StatisticFilter, StatisticSpan
from tarry.operations.statistics import MOST, StatisticsReport, statistics_csv, suitable_span
from tarry.web.api.auth import Looker
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Glob, Since, begin_of

router = APIRouter(prefix="/statistics", tags=["statistics"])

CSV = "text/csv"


@router.get(
    "",
    summary="How many retries helped, how long that took, and what it cost",
    response_model=StatisticsReport,
    responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}},
)
async def show_statistics(
    _caller: Looker,
    operations: Operations,
    *,
    since: Annotated[Since, Query(description="`7d`, or since `2030-01-31T12:00Z`.")] = "7d",
    until: Annotated[Since | None, Query(description="The same; without it, until now.")] = None,
    by: Annotated[list[Dimension] | None, Query(description="May be repeated.", max_length=len(Dimension))] = None,
    over_time: Annotated[bool, Query(description="One row for each hour or day.")] = False,
    span: Annotated[
        StatisticSpan | None,
        Query(description="Count whole hours or days. By default hours, for more than 3 days days."),
    ] = None,
    queue: Annotated[Glob | None, Query(description="A queue, or a glob of `*` and `?`.")] = None,
    policy: Annotated[Glob | None, Query(description="A policy.")] = None,
    error: Annotated[Glob | None, Query(description="The fingerprint of an error, or its beginning.")] = None,
    owner: Annotated[Glob | None, Query(description="Whom the messages belong to.")] = None,
    attempt: Annotated[int | None, Query(ge=0, le=MOST_ATTEMPTS, description="The number of the retry.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST, description="Of more values, the largest.")] = MOST,
    format: Annotated[Literal["json", "csv"], Query(description="CSV has the rows only.")] = "json",  # noqa: A002
) -> StatisticsReport | Response:
    """Times are rounded to whole hours or days of UTC. By owner there is no division by error or attempt."""
    now = datetime.now(UTC)
    began, ends = begin_of(since), begin_of(until) if until else now
    wanted = StatisticFilter(
        since=began,
        until=ends,
        span=span or suitable_span(began, ends),
        queue=queue,
        policy=policy,
        error=error,
        owner=owner,
        attempt=attempt,
    )
    found = await operations.statistics(wanted, list(dict.fromkeys(by or ())), by_time=over_time, limit=limit)
    return found if format == "json" else as_csv(found)


def as_csv(report: StatisticsReport) -> Response:
    name = f"tarry-statistics-{report.since:%Y-%m-%d}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(statistics_csv(report), media_type=f"{CSV}; charset=utf-8", headers=headers)

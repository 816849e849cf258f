"""`tarry stats`: how many retries helped, how long that took, and what it cost.

Exit codes: 0 done, also if nothing happened in that time; 1 Postgres failed; 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from tarry.analytics.rollups import MOST_ATTEMPTS, Dimension, StatisticFilter, StatisticSpan
from tarry.cli.control_view import plain
from tarry.cli.installation import moment
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import line, note, print_json, print_table, shortened, table, waiting
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.errors import SettingsError
from tarry.operations.protocol import Operations
from tarry.operations.statistics import (
    MOST,
    StatisticRow,
    StatisticsReport,
    describe_values,
    statistics_csv,
    suitable_span,
)

MOST_SHOWN = 20
"""Values that a table has, unless more are asked for."""
LONGEST = 60

NUMBERS = ("scheduled", "succeeded", "failed", "rate", "exhausted", "cost")
TIMES = ("mean", "half within", "95 % within", "mean drift", "99 % drift")


def register(app: typer.Typer) -> None:
    app.command("stats")(operator_command(stats, only_looks=True))


async def stats(
    *,
    operations: Operations,
    by: Annotated[
        list[Dimension] | None,
        typer.Option(help="Divide by this. Repeatable. Default: queue, or only the time with --over."),
    ] = None,
    over: Annotated[StatisticSpan | None, typer.Option(help="One row for each hour or day, of UTC.")] = None,
    since: Annotated[str, typer.Option(metavar="WHEN", help="From then on: 7d, or 2030-01-31T12:00.")] = "7d",
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Until then. Default: now.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="GLOB", help="Only this queue, or a glob.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only this policy.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="Only this error, or the beginning of its fingerprint.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only messages of this owner.")] = None,
    attempt: Annotated[int | None, typer.Option(min=0, max=MOST_ATTEMPTS, help="Only this attempt.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, show_default=f"{MOST_SHOWN}; {MOST:,} with --json and --csv", help="Of more, the largest."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how many retries succeeded or failed again, how long that took, and what it cost.

    Reads counts that the service keeps up: by the hour for up to three days, and otherwise by the day, so the time
    begins and ends with a whole one. The rate is of the returned retries whose outcome is known. The cost is each
    return times the `cost` of its policy. By owner, there is no division by error or attempt.
    """
    if as_csv and as_json:
        raise SettingsError("--csv and --json: give one of them.")
    wanted = _filter(since, until, over, queue=queue, policy=policy, error=error, owner=owner, attempt=attempt)
    dimensions = by or ([] if over else [Dimension.QUEUE])
    most = limit or (MOST if as_csv or as_json else MOST_SHOWN)
    with waiting("Counting", quiet=as_json or as_csv):
        found = await operations.statistics(
            wanted, list(dict.fromkeys(dimensions)), by_time=over is not None, limit=most
        )
    if as_json:
        print_json(plain(asdict(found)))
    elif as_csv:
        typer.echo(statistics_csv(found), nl=False)
    else:
        _show(found)


def _filter(
    since: str,
    until: str | None,
    over: StatisticSpan | None,
    *,
    queue: str | None,
    policy: str | None,
    error: str | None,
    owner: str | None,
    attempt: int | None,
) -> StatisticFilter:
    began, ends = moment(since, "--since"), moment(until, "--until") or datetime.now(UTC)
    if began is None or began >= ends:
        raise SettingsError("--since: the time must begin before it ends; give a duration such as 7d, or a time.")
    span = over or suitable_span(began, ends)
    return StatisticFilter(began, ends, span, queue=queue, policy=policy, error=error, owner=owner, attempt=attempt)


def _show(found: StatisticsReport) -> None:
    when = f"from {found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M} UTC"
    for text in found.notes:
        line(text, "!", "yellow")
    if not found.rows:
        line(f"nothing happened {when}, or nothing matches")
        return
    names = [*(["time"] if found.rows[0].starts else []), *map(str, found.by)]
    copied = [one for one in names if one not in ("time", "attempt")]
    numbers = table(f"retries {when}", *names, *NUMBERS, right=NUMBERS, copied=copied)
    times = table("time to success, and drift of the returns", *names, *TIMES, right=TIMES, copied=copied)
    for row in _with_total(found):
        values = _values(row, found)
        numbers.add_row(*values, *_numbers(row))
        times.add_row(*values, *_times(row))
    print_table(numbers)
    print_table(times)
    _show_errors(found.rows)
    if found.more:
        note(f"There are more: these are the largest, and `all` has all of them. --limit {MOST} shows up to {MOST:,}.")


def _with_total(found: StatisticsReport) -> Iterator[StatisticRow]:
    yield from found.rows
    if len(found.rows) > 1 or found.more:
        yield found.total


def _values(row: StatisticRow, found: StatisticsReport) -> list[str]:
    has_time = found.rows[0].starts is not None
    if row is found.total:
        return ["all", *[""] * (len(found.by) + has_time - 1)] if found.by or has_time else []
    starts = (
        [] if row.starts is None else [f"{row.starts:%Y-%m-%d %H:%M}"[: 10 if found.span is StatisticSpan.DAY else 16]]
    )
    return [*starts, *map(printable, describe_values(row, found.by))]


def _numbers(row: StatisticRow) -> list[str]:
    rate = "-" if row.success_rate is None else f"{row.success_rate:.1f} %"
    cost = "-" if row.cost is None else f"{row.cost:,}"
    return [f"{row.scheduled:,}", f"{row.succeeded:,}", f"{row.failed:,}", rate, f"{row.exhausted:,}", cost]


def _times(row: StatisticRow) -> list[str]:
    found = (row.success_mean_ms, row.success_p50_ms, row.success_p95_ms, row.drift_mean_ms, row.drift_p99_ms)
    return ["-" if one is None else humanise(one) for one in found]


def _show_errors(rows: Sequence[StatisticRow]) -> None:
    """What the fingerprints stand for."""
    known = {row.error: row for row in rows if row.error and (row.error_type or row.example)}
    for fingerprint, row in known.items():
        line(f"{fingerprint}: {shortened(': '.join(filter(None, (row.error_type, row.example))), LONGEST)}")

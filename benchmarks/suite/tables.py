"""Every table of the report, once: the terminal and the page show the same rows. Pure; tarry's own are in `details`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.suite.details import backlog, capacity, cluster, cost, drain, drift, ways
from benchmarks.suite.grid import Grid, told
from benchmarks.suite.promises import CEILING, Promise, promises
from benchmarks.suite.samples import Samples, Spread
from benchmarks.suite.svg import figure

TARRY = "tarry"
PROMISED = "What it must show"


def grids(result: dict[str, Any]) -> list[Grid]:
    found = Samples.from_json(result)
    names = {slug: one["name"] for slug, one in result["contenders"].items()}
    made = (
        promised(promises(found)),
        capacity(found, names),
        _throughput(found, names),
        _scheduling(found, names),
        drift(found, names),
        drain(found, names),
        cost(found, names),
        backlog(found),
        *ways(found),
        cluster(found),
    )
    return [one for one in made if one.rows]


def promised(of: Sequence[Promise]) -> Grid:
    rows = [
        [
            one.text,
            f"{'at most' if one.at_most else 'at least'} {figure(one.floor)}{_unit(one)}",
            told(one.found) + (_unit(one) if one.found else ""),
            one.verdict,
        ]
        for one in of
    ]
    columns = ("promise", "", "found: median (least to most)", "")
    text = "Ratios are of neighbours: of one repeat, and of tarry measured anew right beside a contender where it was."
    return Grid(PROMISED, text, columns, rows)


def _unit(one: Promise) -> str:
    return f" {one.unit}" if one.unit else ""


def _throughput(found: Samples, names: dict[str, str]) -> Grid:
    scenario = "end to end"
    rows = [
        [*row, _share(found.spread(scenario, slug, "early_share"))] for slug, row in _compared(found, names, scenario)
    ]
    text = (
        "Request in, message back in its queue, and recorded; out of a full queue, every retry waits 2 s, 512-byte "
        "bodies. The time is that from the first to the last, the one delay included, in runs of about a quarter of a "
        "minute for everybody; tarry's clock stops when the last return is in Postgres."
    )
    columns = ("", "retries per second", "tarry is … times as fast", "came early")
    return Grid("End to end", text, columns, rows, "bench-end-to-end.svg")


def _scheduling(found: Samples, names: dict[str, str]) -> Grid:
    scenario = "scheduling"
    rows = []
    for slug, row in _compared(found, names, scenario):
        share = found.ratio(scenario, (slug, "per_s"), (CEILING, "per_s"))
        rows.append([*row, told(share)])
    text = (
        "Requests moved and durable per second, out of a full queue, into a wait of half an hour. The broker's ceiling "
        "is raw confirmed publishing into one quorum queue with pika's asyncio connection, nothing else."
    )
    columns = ("", "requests per second", "tarry is … times as fast", "of the broker's ceiling")
    return Grid("Scheduling", text, columns, rows, "bench-scheduling.svg")


def _compared(found: Samples, names: dict[str, str], scenario: str) -> Iterator[tuple[str, list[str]]]:
    for slug in found.subjects(scenario):
        name, spread = names.get(slug, f"*{slug}*"), found.spread(scenario, slug, "per_s")
        if spread is None:
            yield slug, [name, f"broke: {found.failure(scenario, slug)}", "–"]
        else:
            times = found.times(scenario, slug)
            yield slug, [name, told(spread), "" if slug == TARRY else told(times)]


def _share(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.median:.0%}" if spread.median else "none"

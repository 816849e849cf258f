"""Every table of the report, once: the terminal and the page show the same rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.promises import CEILING, Promise, promises
from benchmarks.suite.samples import Samples, Spread
from benchmarks.suite.svg import figure

TARRY = "tarry"
RATES = (50, 200, 1_000, 3_000)


@dataclass(frozen=True)
class Grid:
    """A heading, a sentence, columns and rows."""

    heading: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    chart: str | None = None


def grids(result: dict[str, Any]) -> list[Grid]:
    found = Samples.from_json(result)
    names = {slug: one["name"] for slug, one in result["contenders"].items()}
    made = (
        promised(promises(found)),
        _throughput(found, names),
        _scheduling(found, names),
        _drift(found, names),
        _drain(found, names),
        _cost(found, names),
        _backlog(found),
        *_ways(found),
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
    return Grid("What it must show", "Ratios are of neighbours in the same repeat.", columns, rows)


def _unit(one: Promise) -> str:
    return f" {one.unit}" if one.unit else ""


def told(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.count == 1 or spread.least == spread.most:
        return figure(spread.median)
    return f"{figure(spread.median)} ({figure(spread.least)} to {figure(spread.most)})"


def _throughput(found: Samples, names: dict[str, str]) -> Grid:
    scenario = "end to end"
    rows = list(_compared(found, names, scenario))
    text = (
        "Request in, message back in its queue, and recorded; out of a full queue, every retry waits 2 s, 512-byte "
        "bodies. The delay itself is taken off for everybody; tarry's clock stops when the last return is in Postgres."
    )
    columns = ("", "retries per second", "tarry is … times as fast", "came early")
    rows = [[*row, _share(found.spread(scenario, slug, "early_share"))] for slug, row in rows]
    return Grid("End to end", text, columns, [list(row) for row in rows], "bench-end-to-end.svg")


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
            times = found.ratio(scenario, (TARRY, "per_s"), (slug, "per_s"))
            yield slug, [name, told(spread), "" if slug == TARRY else told(times)]


def _share(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.median:.0%}" if spread.median else "none"


def _drift(found: Samples, names: dict[str, str]) -> Grid:
    rows = []
    for slug in found.subjects("drift"):
        row = [names.get(slug, slug)]
        for rate in RATES:
            three = [found.spread("drift", slug, f"{one} at {rate}/s") for one in ("p50", "p99", "max")]
            row.append(" / ".join(figure(one.median) for one in three if one) or "cannot carry it")
        broke = found.failure("drift", slug)
        rows.append([*row, f"broke: {broke}" if broke else ""])
    text = (
        "Milliseconds after the due moment, p50 / p99 / max, at the consumer of the queue, 2 s delays. For the ladder "
        "(delays of 2 to 4 s to the millisecond) what is rounded up to 125 ms counts as late, and so does the time "
        "from sending the request. A load that is not 15 % under a contender's end-to-end throughput is not put on it."
    )
    columns = ("", *(f"{rate:,}/s" for rate in RATES), "")
    return Grid("Drift", text, columns, rows, "bench-drift-1000.svg")


def _drain(found: Samples, names: dict[str, str]) -> Grid:
    rows, before = [], None
    for slug in found.subjects("drain"):
        spread = found.spread("drain", slug, "per_s")
        if spread is None:
            rows.append([names.get(slug, slug), f"broke: {found.failure('drain', slug)}", "", "", "", ""])
            continue
        of_bare = found.ratio("drain", (slug, "per_s"), ("bare tier", "per_s"))
        each = 1e6 / spread.median
        added = "" if before is None or slug in names else f"{each - before:+.0f} µs"
        late = [found.spread("drain", slug, one) for one in ("p50_ms", "p99_ms")]
        seconds = found.spread("drain", slug, "seconds")
        rows.append(
            [
                names.get(slug, slug),
                told(spread),
                told(of_bare),
                added,
                told(seconds),
                " / ".join(figure(one.median) for one in late if one),
            ]
        )
        before = each
    text = (
        "A tier full of messages that expire in the same moment, with the way home cut short: *deliver* has only the "
        "exchange that finds the queue, *tap* adds the copy for the books, *relay* the relay queue and the held gate, "
        "*whole way* the cancelled gate and the ladder's exchanges; at last the service reads the tap and writes."
    )
    columns = ("", "messages per second", "of the bare tier", "each message costs", "seconds", "p50 / p99 ms late")
    return Grid("Many due at once", text, columns, rows, "bench-drain.svg")


def _cost(found: Samples, names: dict[str, str]) -> Grid:
    rows = []
    for slug in found.subjects("end to end"):
        parts = [found.spread("end to end", slug, f"cpu_{one}_s") for one in ("own", "broker", "postgres")]
        known = [one.median for one in parts if one]
        if known:
            rows.append([names.get(slug, slug), *(figure(one) for one in known), figure(sum(known))])
    text = "Processor seconds for 100,000 retries, end to end, start-up of its processes included."
    return Grid("What it costs", text, ("", "its own processes", "RabbitMQ", "Postgres", "all"), rows)


def _backlog(found: Samples) -> Grid:
    measures = ("per_s", "start_s", "p50 at 200/s", "p99 at 200/s", "p50 at 1000/s", "p99 at 1000/s", "broker_mib")
    rows = [[one, *(told(found.spread("backlog", one, it)) for it in measures)] for one in found.subjects("backlog")]
    text = (
        "So many wait in one tier and in the books; then a full request queue is scheduled into that same tier, and "
        "retries of 2 to 4 s go by the ladder. Start-up is from the start of the process to its first scheduled retry."
    )
    columns = (
        "",
        "requests per second",
        "start-up s",
        "drift p50 ms at 200/s",
        "p99",
        "p50 at 1,000/s",
        "p99",
        "broker memory MiB",
    )
    return Grid("With a backlog", text, columns, rows, "bench-backlog.svg")


def _ways(found: Samples) -> Iterator[Grid]:
    each = {"retries per second": "per_s"}
    yield _way(
        found, "routers", "Several routers on one machine", "They share its cores with broker and Postgres.", each
    )
    yield _way(found, "bodies", "Body sizes", "End to end, with the audit.", each | {"MiB per second": "mib_per_s"})
    text = (
        "End to end. Off: claims are granted, nothing is written. On the spool: no Postgres, the broker keeps records."
    )
    yield _way(found, "books", "The audit on, off and on the spool", text, each)
    text = "What `tarry status` asks, twice a second, while the load runs."
    answers = {"answer p50 ms": "answer_p50_ms", "answer max ms": "answer_max_ms"}
    yield _way(found, "dashboard", "Somebody looks on", text, each | answers)


def _way(found: Samples, scenario: str, heading: str, text: str, measures: dict[str, str]) -> Grid:
    rows = []
    for one in found.subjects(scenario):
        broke = found.failure(scenario, one)
        cells = [told(found.spread(scenario, one, it)) for it in measures.values()]
        rows.append([one, *([f"broke: {broke}", *cells[1:]] if broke else cells)])
    return Grid(heading, text, ("", *measures), rows)

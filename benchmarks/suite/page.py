"""docs/performance.md, from the JSON of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.suite.grid import Grid
from benchmarks.suite.markdown import table
from benchmarks.suite.promises import promises
from benchmarks.suite.samples import Samples
from benchmarks.suite.shortfalls import shortfalls
from benchmarks.suite.tables import PROMISED, grids

INTRO = """# Performance

tarry side by side with what people would pick instead: one machine, one run, one broker and one Postgres for all, the
same bodies, everybody once with a few requests before anything counts, the order rotated over the repeats. This page is
written by `make bench` from that run; nothing in it is typed in by hand. Only ratios of neighbours mean much on a
shared machine. How to run it: [below](#how-to-run-it).
"""

HOW = """## How to run it

```console
$ make bench                                             # everything; writes this page and its charts
$ make bench ARGS="--only tarry,aio-pika,drift"          # some contenders, some scenarios; writes no page
$ make bench ARGS="--repeats 5 --scale 0.5"
$ make bench-quick                                       # under five minutes: a few ratios, exit 1 if broken
```

The contenders' packages are pinned in `benchmarks/requirements.lock` and installed apart from tarry's. What was
tried to make tarry faster, and what it gave, is in [benchmarks/HISTORY.md](../benchmarks/HISTORY.md).
"""


def page(result: dict[str, Any], charts: Sequence[str]) -> str:
    parts = [INTRO, _machine(result)]
    for one in grids(result):
        parts.append(_grid(one, charts))
        if one.heading == PROMISED:
            found = Samples.from_json(result)
            parts += [text] if (text := shortfalls(found, promises(found))) else []
    parts += [_facts(result), _settings(result), _times(result), HOW]
    return "\n".join(parts)


def _machine(result: dict[str, Any]) -> str:
    about = result["machine"]
    return (
        f"{about['date']}: {about['cores']} cores ({about['processor']}), {about['memory_gib']} GiB, "
        f"Linux {about['kernel']}, Python {about['python']}; RabbitMQ {about['rabbitmq']}; PostgreSQL "
        f"{about['postgresql']}. Repeats: {result['repeats']}, at scale {result['scale']:g}; load average before: "
        f"{about['load_before']:g}.\n"
    )


def _grid(one: Grid, charts: Sequence[str]) -> str:
    lines = [f"## {one.heading}\n", one.text + "\n"]
    if one.chart in charts:
        lines.append(f"![{one.heading}](img/{one.chart})\n")
    return "\n".join([*lines, table(one.columns, one.rows)])


def _facts(result: dict[str, Any]) -> str:
    columns = ("", "durable delay", "delays", "back in its own queue", "record of each step")
    rows = [
        [one["name"], *(one["facts"][key] for key in ("durable", "delays", "same_queue", "audit"))]
        for one in result["contenders"].values()
    ]
    return "## What each can and cannot do\n\n" + table(columns, rows)


def _settings(result: dict[str, Any]) -> str:
    return "## Versions and settings\n\n" + table(("", "versions", "settings"), list(_setting_rows(result)))


def _setting_rows(result: dict[str, Any]) -> Iterator[list[str]]:
    for one in result["contenders"].values():
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        settings = "; ".join(f"*{name}*: {text}" for name, text in one["settings"].items())
        yield [one["name"], versions, f"{settings}; *requests in a run*: {one['requests']:,}"]


def _times(result: dict[str, Any]) -> str:
    told = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in result["seconds"].items())
    return f"The run took {sum(result['seconds'].values()) / 60:.0f} minutes: {told}.\n"

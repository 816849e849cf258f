"""make bench: tarry side by side with what people would pick instead, on one broker and one Postgres.

A contender that fails to start or breaks is a row that says so. Exit 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contenders.protocol import Contender
from benchmarks.contenders.registry import ALL
from benchmarks.router.stage import stage
from benchmarks.suite.bench import Bench
from benchmarks.suite.charts import charts
from benchmarks.suite.grid import Grid
from benchmarks.suite.machine import described, machine
from benchmarks.suite.page import page
from benchmarks.suite.promises import Promise, promises, quick_promises
from benchmarks.suite.samples import Samples
from benchmarks.suite.scaling import scaling
from benchmarks.suite.scenarios import backlog, capacity, cluster, drain, drift, throughput, ways
from benchmarks.suite.tables import PROMISED, grids, promised

SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "warm-up": throughput.warm_up,
    "capacity": capacity.run,
    "scheduling": throughput.run_scheduling,
    "end-to-end": throughput.run_end_to_end,
    "drift": drift.run,
    "drain": drain.run,
    "routers": ways.run_routers,
    "bodies": ways.run_bodies,
    "audit": ways.run_audit,
    "dashboard": ways.run_dashboard,
    "cluster": cluster.run,
    "backlog": backlog.run,
}
QUICK = ("scheduling", "end-to-end", "drift", "drain")
QUICK_CONTENDERS = ("tarry", "polling-tuned", "celery-native", "aio-pika")
PAGE, SCALING, IMAGES = Path("docs/performance.md"), Path("docs/scaling.md"), Path("docs/img")


def main() -> int:
    arguments = _arguments()
    console = Console()
    if arguments.report:
        result = json.loads(Path(arguments.report).read_text(encoding="utf-8"))
    else:
        result = measure(arguments, console)
        Path(arguments.json).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    judged = (quick_promises if result["quick"] else promises)(Samples.from_json(result))
    show(result, judged, console)
    if arguments.report or not (arguments.quick or arguments.only):
        write(result)
        console.print(f"written: {PAGE}, {SCALING} and the charts in {IMAGES}")
    return 1 if any(one.kept is False for one in judged) else 0


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    scenarios, contenders = chosen(arguments.only, quick=arguments.quick)
    with stage(arguments.broker) as on:
        bench = Bench(on, contenders, arguments.repeats, arguments.scale, console, quick=arguments.quick)
        about = machine(on)
        for place, name in enumerate(scenarios, 1):
            bench.timed(name, SCENARIOS[name], f"{place} of {len(scenarios)}")
    return {
        "machine": about,
        "quick": arguments.quick,
        "repeats": arguments.repeats,
        "scale": arguments.scale,
        "seconds": bench.seconds,
        "contenders": described(contenders),
        **bench.found.as_json(),
    }


def chosen(only: str, *, quick: bool) -> tuple[list[str], list[Contender]]:
    """Names of scenarios and of contenders, mixed; none of a kind means all of it."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    slugs = {one.slug for one in ALL}
    unknown = [word for word in words if word not in slugs and word not in SCENARIOS]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}. There are {', '.join([*SCENARIOS, *sorted(slugs)])}.")
    scenarios = [name for name in SCENARIOS if name in words] or list(QUICK if quick else SCENARIOS)
    wanted = [word for word in words if word in slugs] or (QUICK_CONTENDERS if quick else slugs)
    return scenarios, [one for one in ALL if one.slug in wanted]


def show(result: dict[str, Any], judged: Sequence[Promise], console: Console) -> None:
    for grid in [one for one in grids(result) if one.heading != PROMISED]:
        console.print(_rich(grid))
    console.print(_rich(promised([one for one in judged if one.kept is not None])))


def _rich(grid: Grid) -> Table:
    made = Table(*grid.columns, title=grid.heading, title_justify="left", caption=grid.text, caption_justify="left")
    for row in grid.rows:
        made.add_row(*row)
    return made


def write(result: dict[str, Any]) -> None:
    drawn = charts(result)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    PAGE.write_text(page(result, list(drawn)), encoding="utf-8")
    larger = scaling(result)
    if larger is not None:
        SCALING.write_text(larger, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="NAMES", help="scenarios and contenders, by comma; writes no page"
    )
    parser.add_argument("--repeats", type=int, help="of throughput; default 3, quick 1")
    parser.add_argument("--scale", type=float, help="of all sizes; default 1, quick 0.6")
    parser.add_argument("--quick", action="store_true", help="under five minutes: a few ratios with floors")
    parser.add_argument("--broker", default="4.3", metavar="SERIES", help="default 4.3; 3.10 has no delayed retry")
    parser.add_argument("--json", metavar="FILE", help="where the figures go; in .tarry unless told")
    parser.add_argument("--report", metavar="FILE", help="measure nothing: write the page and charts from this JSON")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    kind = "-quick" if arguments.quick else "-part" if arguments.only else ""
    arguments.json = arguments.json or f".tarry/bench{kind}.json"
    arguments.scale = arguments.scale or (0.6 if arguments.quick else 1.0)
    return arguments


if __name__ == "__main__":
    sys.exit(main())

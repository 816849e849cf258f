"""What events cost: the router with and without them, taking turns. In both the requests wait in a full queue at the
start, which is the hardest case: the router has no time to spare, and events have to wait for it.

python -m benchmarks.events [--quick] [--broker SERIES] [--requests N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass

import psycopg

from benchmarks.router.load import fill
from benchmarks.router.own import serving
from benchmarks.router.stage import Space, stage
from tarry.topology.apply import apply
from tarry.topology.load import load

LONG = "30m"
"""A delay that nothing comes back from during a measurement."""

SHARE = 0.9
"""The router with events keeps at least this much of the speed of the one without."""

WITHIN = 60.0
"""Seconds after the last request was scheduled, in which all its events are published."""

WITH_EVENTS = "\n[events]\nenabled = true\n"


@dataclass(frozen=True)
class Run:
    """One run with events."""

    rate: float
    behind: float
    """Seconds from the last scheduled request to its event."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, fewer messages")
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    parser.add_argument("--requests", type=int, metavar="N", help="requests in each run; default: 30000")
    arguments = parser.parse_args()
    rounds, usual = (1, 10_000) if arguments.quick else (5, 30_000)
    count = arguments.requests or usual
    without, runs = [], []
    with stage(arguments.broker) as on:
        for _ in range(rounds):
            with on.space(LONG) as space:
                without.append(run(space, count).rate)
            with on.space(LONG) as space:
                with_events(space)
                runs.append(run(space, count, events=True))
        version = on.broker.version
    shares = [one.rate / other for one, other in zip(runs, without, strict=True)]
    median, slowest = statistics.median(shares), max(one.behind for one in runs)
    kept = median >= SHARE and slowest <= WITHIN
    shown = {
        "broker": version,
        "rates_per_s": {"without": list(map(round, without)), "with": [round(one.rate) for one in runs]},
        "share": [round(share, 2) for share in shares],
        "median": round(median, 2),
        "all_published_after_s": [round(one.behind, 1) for one in runs],
        "kept": kept,
    }
    print(json.dumps(shown, indent=2))
    return 0 if kept else 1


def with_events(space: Space) -> None:
    with (space.folder / "tarry.toml").open("a", encoding="utf-8") as file:
        file.write(WITH_EVENTS)
    apply(load(space.folder), space.address)


def run(space: Space, count: int, *, events: bool = False) -> Run:
    """Requests per second out of a full queue, the ramp at the beginning left out."""
    asyncio.run(fill(space, count))
    with serving(space) as service:
        seen = [one for one in service.wait_scheduled(count) if one[1] > 0]
        behind = wait_published(space, count, seen[-1][0]) if events else 0.0
    (start, before), (end, after) = seen[0], seen[-1]
    return Run((after - before) / (end - start), behind)


def wait_published(space: Space, count: int, since: float) -> float:
    with psycopg.connect(space.dsn, autocommit=True) as connection:
        while True:
            row = connection.execute("select published from event_position").fetchone()
            if row is not None and row[0] >= count:
                return time.perf_counter() - since
            if time.perf_counter() - since > 2 * WITHIN:
                raise RuntimeError(f"{row} of {count} events are published")
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())

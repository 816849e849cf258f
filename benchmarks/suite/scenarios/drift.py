"""How late retries come back under a steady load, at four rates, for every contender that can carry the load."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders.marks import ARRIVED
from benchmarks.contenders.protocol import Contender, Job
from benchmarks.contenders.registry import by_slug
from benchmarks.contenders.running import BrokenError, Running, running
from benchmarks.suite.bench import SHORT_S, Bench
from benchmarks.suite.samples import percentile

NAME = "drift"
LADDER = "tarry, ladder"
RATES = {50: 10.0, 200: 8.0, 1_000: 8.0, 3_000: 6.0}
"""Requests a second, and for how long."""

QUICK = {200: 6.0}
WARM_UP = 50
PATIENCE = 30.0


def run(bench: Bench) -> None:
    for one in [one for one in bench.contenders if one.slug == "tarry" or not bench.quick]:
        bench.attempt(NAME, one.slug, partial(_all_rates, bench, one, Job(SHORT_S), one.slug))
        if one.slug == "tarry" and not bench.quick:
            bench.attempt(NAME, LADDER, partial(_all_rates, bench, by_slug("tarry"), _ladder(), LADDER))


def _ladder() -> Job:
    """Delays that no tier has: two to four seconds, to the millisecond."""
    return Job(SHORT_S, variant="ladder")


def _all_rates(bench: Bench, contender: Contender, job: Job, subject: str) -> None:
    with running(bench.on, contender, job) as one:
        one.watch()
        one.start()
        warm_up(one)
        for per_second, seconds in (QUICK if bench.quick else RATES).items():
            if not bench.found.carries(contender.slug, per_second):
                break  # the page says so
            late = drift(one, per_second, max(1.0, seconds * min(bench.scale, 1.0)))
            figures = _figures(late)
            bench.note(NAME, subject, 0, **{f"{name} at {per_second}/s": value for name, value in figures.items()})


def warm_up(one: Running) -> None:
    one.fill(WARM_UP)
    one.wait(one.arrived, WARM_UP, PATIENCE + 60)


def drift(one: Running, per_second: int, seconds: float) -> list[float]:
    """Milliseconds after the due moment, sorted."""
    before = one.arrived()
    count = one.pace(per_second, seconds)
    one.wait(one.arrived, before + count, PATIENCE)
    late = sorted((at - due) * 1000 for at, due in one.marks.read(ARRIVED)[before:] if due)
    if len(late) < count:
        raise BrokenError(f"only {len(late)} of {count} told when they were due")
    return late


def _figures(late: list[float]) -> dict[str, float]:
    return {
        "least": late[0],
        "p50": percentile(late, 0.5),
        "p99": percentile(late, 0.99),
        "max": late[-1],
    }

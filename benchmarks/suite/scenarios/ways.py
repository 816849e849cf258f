"""tarry run in other ways: more routers, other bodies, without the audit, and with a dashboard open."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.contenders.protocol import Job, own_module
from benchmarks.contenders.registry import by_slug
from benchmarks.contenders.running import BrokenError, Running
from benchmarks.suite.bench import SHORT_S, Bench
from benchmarks.suite.samples import percentile
from benchmarks.suite.throughput import end_to_end

ROUTERS, BODIES, AUDIT, DASHBOARD = "routers", "bodies", "audit", "dashboard"
COUNT = 30_000
SIZES = {256: 30_000, 4_096: 20_000, 65_536: 8_000, 1_048_576: 600}
"""Bytes in a body, and how many of them."""

Case = tuple[str, Job, int]


def run_routers(bench: Bench) -> None:
    _run(bench, ROUTERS, [(f"{one} routers", Job(SHORT_S, workers=one, variant="several"), COUNT) for one in (1, 2, 4)])


def run_bodies(bench: Bench) -> None:
    _run(bench, BODIES, [(f"{size} bytes", Job(SHORT_S, body=size), count) for size, count in SIZES.items()], repeats=1)


def run_audit(bench: Bench) -> None:
    ways = ("audit on", "audit off", "audit on the spool")
    _run(bench, AUDIT, [(way, Job(SHORT_S, variant=way), COUNT) for way in ways])


def run_dashboard(bench: Bench) -> None:
    _run(bench, DASHBOARD, [(way, Job(SHORT_S, variant=way), COUNT) for way in ("nobody looks", "a dashboard looks")])


def _run(bench: Bench, scenario: str, cases: Sequence[Case], repeats: int = 2) -> None:
    for repeat in range(min(bench.repeats, repeats)):
        for subject, job, count in _turned(cases, repeat):
            bench.attempt(scenario, subject, partial(_one, bench, scenario, repeat, (subject, job, count)))


def _turned(cases: Sequence[Case], repeat: int) -> Iterable[Case]:
    return cases if repeat % 2 == 0 else reversed(cases)


def _one(bench: Bench, scenario: str, repeat: int, case: Case) -> None:
    subject, job, count = case
    size = bench.size(count, least=20)
    if job.variant == "a dashboard looks":
        bench.note(scenario, subject, repeat, **_looked_at(bench, job, size))
        return
    figures = end_to_end(bench.on, by_slug("tarry"), job, size)
    mib = {"mib_per_s": figures["per_s"] * job.body / 2**20} if scenario == BODIES else {}
    bench.note(scenario, subject, repeat, **figures, **mib)


def _looked_at(bench: Bench, job: Job, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        told, viewers = Path(folder) / "seconds", list[subprocess.Popen[bytes]]()

        def look(one: Running) -> None:
            environment = os.environ | one.space.environment | {"BENCH_DASHBOARD": str(told)}
            viewers.append(subprocess.Popen(own_module("dashboard"), env=environment))

        try:
            figures = end_to_end(bench.on, by_slug("tarry"), job, count, beside=look)
        finally:
            for viewer in viewers:
                viewer.terminate()
                viewer.wait()
        took = sorted(float(line) * 1000 for line in told.read_text().split()) if told.exists() else []
    if not took:
        raise BrokenError("no question was answered while the load ran")
    return figures | {"answer_p50_ms": percentile(took, 0.5), "answer_max_ms": took[-1]}

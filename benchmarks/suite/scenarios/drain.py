"""Many due in the same instant: the whole way home, what each part of it costs, and the tuned poller for comparison."""

from __future__ import annotations

import time
from functools import partial

import psycopg

from benchmarks.contenders.marks import ARRIVED
from benchmarks.contenders.pollers import TUNED
from benchmarks.contenders.protocol import Job
from benchmarks.contenders.running import Running, running
from benchmarks.router.stage import ORIGIN
from benchmarks.suite.bench import LONG_S, Bench
from benchmarks.suite.drains import BARE, PATIENCE, READ, Way, drain, scene, ways
from benchmarks.suite.samples import percentile

NAME = "drain"
COUNT = 20_000
REPEATS = 3
"""The most of them: each drains six times."""

ROWS = """
insert into retry_task (message_id, queue, properties, body, due)
select n::text, %s, '\\x0000', decode(repeat('00', 512), 'hex'), to_timestamp(%s) from generate_series(1, %s) n
"""


def run(bench: Bench) -> None:
    for repeat in range(min(bench.repeats, REPEATS)):
        with scene(bench.on) as one:
            for way in [way for way in ways(one.space) if way.name in (BARE, READ) or not bench.quick]:
                bench.attempt(NAME, way.name, partial(_drain, bench, repeat, one, way))
        if not bench.quick:
            bench.attempt(NAME, TUNED.slug, partial(_poller, bench, repeat))


def _drain(bench: Bench, repeat: int, one: Running, way: Way) -> None:
    bench.note(NAME, way.name, repeat, **drain(bench.on, one, way, bench.size(COUNT)))


def _poller(bench: Bench, repeat: int) -> None:
    """The same number of rows, due in the same instant."""
    count = bench.size(COUNT)
    with running(bench.on, TUNED, Job(LONG_S)) as one:
        one.watch()
        due = time.time() + 4
        with psycopg.connect(one.space.dsn) as sql:
            sql.execute(ROWS, (ORIGIN, due, count))
        one.start()
        one.wait(one.arrived, count, PATIENCE)
        late = [at - due for at, _ in one.marks.read(ARRIVED)]
    bench.note(
        NAME,
        TUNED.slug,
        repeat,
        per_s=count / late[-1],
        seconds=late[-1],
        p50_ms=percentile(late, 0.5) * 1000,
        p99_ms=percentile(late, 0.99) * 1000,
        max_ms=late[-1] * 1000,
    )

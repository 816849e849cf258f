"""Does it matter how much waits already? Nothing, a hundred thousand and a million in one tier and in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import psycopg
from psycopg import sql

from benchmarks.contenders import tarry
from benchmarks.contenders.protocol import Job
from benchmarks.contenders.registry import by_slug
from benchmarks.contenders.running import LADDER, Running, running
from benchmarks.router.stage import Space
from benchmarks.suite.bench import LONG_S, Bench
from benchmarks.suite.planned import BATCH, Planner, publish_all
from benchmarks.suite.processes import resident_mib
from benchmarks.suite.samples import percentile
from benchmarks.suite.scenarios.drift import drift
from benchmarks.suite.throughput import PATIENCE
from tarry.amqp.publisher import Publisher

NAME = "backlog"
WAITING = (0, 100_000, 1_000_000)
REQUESTS = 20_000
LOADS = {200: 6.0, 1_000: 6.0}
IN_FLIGHT = 4
SETTLE = 5.0
"""Seconds for what filling has left to do, segments of the broker's log above all: waiting is measured, not filling."""

WARM_UP = -1
"""A repeat that does not count. Filling ends with a checkpoint, and the first change of a page after one puts the whole
page into the log of Postgres: that is the price of a checkpoint, and not of what waits."""


def run(bench: Bench) -> None:
    job = Job(LONG_S, variant=LADDER)
    with running(bench.on, by_slug("tarry"), job) as one:
        waiting = 0
        for wanted in WAITING:
            wanted_here = bench.size(wanted, 0)
            bench.attempt(NAME, f"{wanted_here:,} waiting", partial(_stage, bench, one, waiting, wanted_here))
            waiting = wanted_here


def _stage(bench: Bench, one: Running, waiting: int, wanted: int) -> None:
    subject = f"{wanted:,} waiting"
    if wanted > waiting:
        asyncio.run(_park(one.space, wanted - waiting))
        _enter(one.space, wanted - waiting)
        time.sleep(SETTLE)
    bench.note(NAME, subject, 0, broker_mib=resident_mib(bench.on.broker_pids))
    count = bench.size(REQUESTS)
    for repeat in range(WARM_UP, bench.repeats):
        one.job = Job(LONG_S)
        one.fill(count)
        one.job = Job(LONG_S, variant=LADDER)
        one.start()
        try:
            figures = _scheduling(one, count)
            if repeat > WARM_UP:
                bench.note(NAME, subject, repeat, **figures)
            if repeat == bench.repeats - 1:
                bench.note(NAME, subject, 0, **_drifts(bench, one))
        finally:
            one.stop_work()


def _drifts(bench: Bench, one: Running) -> dict[str, float]:
    one.watch()
    figures: dict[str, float] = {}
    for per_second, seconds in LOADS.items():
        late = drift(one, per_second, max(1.0, seconds * min(bench.scale, 1.0)))
        figures |= {f"p50 at {per_second}/s": percentile(late, 0.5), f"p99 at {per_second}/s": percentile(late, 0.99)}
    return figures


def _scheduling(one: Running, count: int) -> dict[str, float]:
    """From the start of the process to the first that is scheduled; and how fast from there."""
    seen = one.wait(lambda: tarry.scheduled(one), count, PATIENCE)  # counted by the process, which began at nothing
    start, few = next(found for found in seen if found[1] > 0)
    end, all_ = seen[-1]
    figures = {"start_s": start - one.started_at}
    return figures if end == start else figures | {"per_s": (all_ - few) / (end - start)}


async def _park(space: Space, count: int) -> None:
    """Into the tier, through the exchange that the router uses. They are all alike: nobody will read them."""
    planner = Planner(space)
    publisher = await Publisher.open(space.address, "benchmark: backlog")
    message = planner.message(planner.plan())
    going: set[asyncio.Task[None]] = set()
    for start in range(0, count, BATCH):
        batch: Sequence[object] = [message] * min(BATCH, count - start)
        going.add(asyncio.create_task(publish_all(publisher, batch)))  # type: ignore[arg-type]
        if len(going) >= IN_FLIGHT:
            done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    await asyncio.gather(*going)
    await publisher.link.close()


def _enter(space: Space, count: int) -> None:
    """As many rows in the store, each like one that the router has written, with its step in the history."""
    with psycopg.connect(space.dsn) as connection:
        names = connection.execute(
            "select column_name from information_schema.columns where table_name = 'retry' order by ordinal_position"
        ).fetchall()
        own = {"id": "gen_random_uuid()", "message_id": "gen_random_uuid()::text"}
        columns = sql.SQL(", ").join(sql.Identifier(name) for (name,) in names)
        values = sql.SQL(", ").join(sql.SQL(own[n]) if n in own else sql.Identifier("like_it", n) for (n,) in names)
        connection.execute(
            sql.SQL(
                "with new as (insert into retry ({columns}) select {values} "
                "from (select * from retry where state = 'scheduled' limit 1) like_it, generate_series(1, {count}) "
                "returning id) insert into transition (retry_id, round, state, actor) "
                "select id, 1, 'scheduled', 'benchmark' from new"
            ).format(columns=columns, values=values, count=sql.Literal(count))
        )
    with psycopg.connect(space.dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze retry, transition")
        connection.execute("checkpoint")

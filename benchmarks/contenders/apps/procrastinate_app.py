"""Procrastinate, a queue in Postgres: each job fails once and is retried by its strategy.

python -m benchmarks.contenders.apps.procrastinate_app prepare DSN | send COUNT BODY_BYTES PER_SECOND | work
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import procrastinate

from benchmarks.contenders.apps.pacing import arguments
from benchmarks.contenders.marks import Marker

CONCURRENCY = 20
POLL_S = float(os.environ.get("BENCH_POLL", "5"))
DELAY = int(os.environ.get("BENCH_DELAY", "0"))
STEP, TOGETHER = 0.05, 1_000

dsn = os.environ.get("BENCH_DSN") or sys.argv[2]
connector = procrastinate.PsycopgConnector(conninfo=dsn, max_size=CONCURRENCY)
app = procrastinate.App(connector=connector)
due: dict[int, float] = {}


@app.task(name="job", pass_context=True, retry=procrastinate.RetryStrategy(max_attempts=5, wait=DELAY))
async def job(context: Any, body: str) -> None:  # noqa: ARG001 - carried as everybody's body is
    if context.job.attempts:
        marker.arrived(due.pop(context.job.id, 0.0))
        return
    due[context.job.id] = time.time() + DELAY
    marker.scheduled()
    raise RuntimeError("on purpose")


async def send(count: int, body: str, per_second: int) -> None:
    async with app.open_async():
        started, sent = time.monotonic(), 0
        while sent < count:
            upto = min(int((time.monotonic() - started) * per_second) + 1 if per_second else sent + TOGETHER, count)
            if upto > sent:
                await job.batch_defer_async(*({"body": body} for _ in range(upto - sent)))
            sent = upto
            if per_second:
                await asyncio.sleep(STEP)


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(
            concurrency=CONCURRENCY, install_signal_handlers=True, fetch_job_polling_interval=POLL_S
        )


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        asyncio.run(prepare())
    elif sys.argv[1] == "send":
        asyncio.run(send(*arguments()))
    else:
        marker = Marker()
        asyncio.run(work())

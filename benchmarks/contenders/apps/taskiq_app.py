"""taskiq on aio-pika: each task fails once; its retry waits in the delay queue that the broker's documentation shows.

python -m benchmarks.contenders.apps.taskiq_app send COUNT BODY_BYTES PER_SECOND
python -m taskiq worker benchmarks.contenders.apps.taskiq_app:broker
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends
from taskiq_aio_pika import AioPikaBroker, Queue

from benchmarks.contenders.apps.pacing import arguments
from benchmarks.contenders.marks import Marker

DELAY = int(os.environ["BENCH_DELAY"])
STEP, TOGETHER = 0.01, 200

broker = AioPikaBroker(
    os.environ["BENCH_URL"],
    task_queues=[Queue(name="jobs")],
    delay_queue=Queue(name="jobs.delay"),
).with_middlewares(SmartRetryMiddleware(default_retry_count=5, default_delay=DELAY))
marker = Marker()


@broker.task(task_name="job", retry_on_error=True)
async def job(_body: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    labels = context.message.labels
    if int(labels.get("_retries", 0)):
        marker.arrived(float(labels["due"]))
        return
    labels["due"] = time.time() + DELAY
    marker.scheduled()
    raise RuntimeError("on purpose")


async def send(count: int, body: str, per_second: int) -> None:
    await broker.startup()
    started, sent = time.monotonic(), 0
    while sent < count:
        due = min(int((time.monotonic() - started) * per_second) + 1 if per_second else sent + TOGETHER, count)
        await asyncio.gather(*(job.kiq(body) for _ in range(due - sent)))
        sent = due
        if per_second:
            await asyncio.sleep(STEP)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send(*arguments()))

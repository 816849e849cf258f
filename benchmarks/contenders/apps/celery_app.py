"""Celery: each task fails once and asks for a retry. BENCH_CELERY says which kind of delay: native, or countdown.

python -m benchmarks.contenders.apps.celery_app send COUNT BODY_BYTES PER_SECOND
python -m celery -A benchmarks.contenders.apps.celery_app worker -Q jobs
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from benchmarks.contenders.apps.pacing import arguments, paced
from benchmarks.contenders.marks import Marker

NATIVE = os.environ.get("BENCH_CELERY", "native") == "native"
DELAY = int(os.environ["BENCH_DELAY"])
RETURNED = "bench.orders"
"""Native delays end in a queue that a bare consumer watches: Celery is not charged for a second execution."""

app = Celery("bench", broker=os.environ["BENCH_URL"].replace("amqp://", "pyamqp://"))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    broker_transport_options={"confirm_publish": True},
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_default_queue="jobs",
)
if NATIVE:
    quorum, topic = {"x-queue-type": "quorum"}, Exchange("bench", type="topic")
    app.conf.update(
        task_default_exchange="bench",
        task_default_exchange_type="topic",
        task_default_routing_key="jobs",
        broker_native_delayed_delivery_queue_type="quorum",
        task_queues=[
            Queue("jobs", topic, routing_key="jobs", queue_arguments=quorum),
            Queue(RETURNED, topic, routing_key=RETURNED, queue_arguments=quorum),
        ],
    )
marker = Marker()


@app.task(name="job", bind=True, max_retries=5)
def job(self: Any, body: str, due: float = 0.0) -> None:
    if self.request.retries:
        marker.arrived(due)
        return
    due = time.time() + DELAY
    more = {"queue": RETURNED, "headers": {"due-ms": str(int(due * 1000))}} if NATIVE else {}
    again = self.retry(args=(body, due), countdown=DELAY, throw=False, **more)
    marker.scheduled()
    raise again


if __name__ == "__main__":
    count, body, per_second = arguments()
    with app.producer_or_acquire() as producer:
        paced(lambda: job.apply_async(args=(body,), producer=producer), count, per_second)
    sys.exit(0)

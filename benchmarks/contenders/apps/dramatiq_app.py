"""Dramatiq on RabbitMQ: each message fails once and is retried; the worker keeps it in memory until it is due.

python -m benchmarks.contenders.apps.dramatiq_app send COUNT BODY_BYTES PER_SECOND
python -m dramatiq benchmarks.contenders.apps.dramatiq_app
"""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.errors import Retry
from dramatiq.middleware import CurrentMessage

from benchmarks.contenders.apps.pacing import arguments, paced
from benchmarks.contenders.marks import Marker

DELAY_MS = int(os.environ["BENCH_DELAY"]) * 1_000

broker = RabbitmqBroker(url=os.environ["BENCH_URL"], confirm_delivery=True)
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
marker = Marker()


@dramatiq.actor(actor_name="job", queue_name="jobs", max_retries=5)
def job(_body: str) -> None:
    options = CurrentMessage.get_current_message().options
    if options.get("retries"):
        marker.arrived((options["requeue_timestamp"] + DELAY_MS) / 1_000)
        return
    marker.scheduled()
    raise Retry(delay=DELAY_MS)


if __name__ == "__main__":
    count, body, per_second = arguments()
    paced(lambda: job.send(body), count, per_second)

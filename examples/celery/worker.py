"""Celery: a task that fails is rejected, and `tarry attach orders` does the rest.

Celery hides the bytes of a message, so a reject, which carries them all, is the right way to ask.

    celery -A worker worker --concurrency=2
    tarry attach orders
    python worker.py '{"id": 1, "succeeds_at": 3}'
"""

import json
import os
import sys

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry
from kombu import Queue

QUEUE = "orders"

app = Celery("worker", broker=os.environ["RABBITMQ_URL"])
app.conf.update(
    task_default_queue=QUEUE,
    task_queues=[Queue(QUEUE, durable=True, queue_arguments={"x-queue-type": "quorum"})],
    broker_transport_options={"confirm_publish": True},
    # RabbitMQ 4.3 has no transient queues any more, and Celery's remote control and events are made of them.
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    task_ignore_result=True,
)


class Retried(Task):
    """Late acknowledgement, or there would be nothing left to reject."""

    acks_late = True
    reject_on_worker_lost = True

    def __call__(self, *args, **kwargs):
        try:
            return super().__call__(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as error:
            raise Reject(error, requeue=False) from error


@app.task(base=Retried, bind=True, name="ship")
def ship(self, order):
    attempt = 1 + int((self.request.headers or {}).get("tarry-count", 0))
    print(json.dumps({"order": order["id"], "attempt": attempt}), file=sys.__stdout__, flush=True)
    if attempt < order["succeeds_at"]:
        raise ValueError(f"attempt {attempt} was too early")


if __name__ == "__main__":
    ship.apply_async([json.loads(sys.argv[1])])

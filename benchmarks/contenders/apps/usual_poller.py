"""A polling scheduler as such code is usually written: poll every ten seconds, one task at a time.

python -m benchmarks.contenders.apps.usual_poller, with BENCH_URL, BENCH_DSN, BENCH_DELAY and BENCH_MARKS set
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import pika
import psycopg

from benchmarks.contenders.marks import Marker

REQUESTS = "bench.requests"
POLL_S = float(os.environ.get("BENCH_POLL", "10"))
PREFETCH = 100
INSERT = """
insert into retry_task (message_id, queue, properties, body, due)
values (%s, %s, %s, %s, now() + make_interval(secs => %s))
"""
DUE = """
select id, message_id, queue, properties, body, extract(epoch from due) from retry_task
where status = 'pending' and due <= now() order by due
"""
DONE = "update retry_task set status = 'sent', sent_at = now() where id = %s"


def take_in(marker: Marker) -> None:
    delay = float(os.environ["BENCH_DELAY"])
    sql = psycopg.connect(os.environ["BENCH_DSN"])
    channel = pika.BlockingConnection(pika.URLParameters(os.environ["BENCH_URL"])).channel()
    channel.basic_qos(prefetch_count=PREFETCH)

    def handle(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        kept = json.dumps(properties.headers).encode()
        sql.execute(INSERT, (properties.message_id, properties.headers["original_queue"], kept, body, delay))
        sql.commit()
        channel.basic_ack(method.delivery_tag)
        marker.scheduled()

    channel.basic_consume(REQUESTS, handle)
    channel.start_consuming()


def poll() -> None:
    sql = psycopg.connect(os.environ["BENCH_DSN"])
    while True:
        # A connection for each poll: one that idles for ten seconds at a time would miss its heartbeats.
        with pika.BlockingConnection(pika.URLParameters(os.environ["BENCH_URL"])) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for task in sql.execute(DUE).fetchall():
                _send(channel, task)
                sql.execute(DONE, (task[0],))
                sql.commit()
        sql.rollback()
        time.sleep(POLL_S)


def _send(channel: Any, task: tuple[Any, ...]) -> None:
    _, message_id, queue, kept, body, due = task
    headers = json.loads(kept) | {"due-ms": int(float(due) * 1000)}
    properties = pika.BasicProperties(delivery_mode=2, message_id=message_id, headers=headers)
    channel.basic_publish("", queue, body, properties, mandatory=True)


if __name__ == "__main__":
    threading.Thread(target=take_in, args=(Marker(),), daemon=True).start()
    poll()

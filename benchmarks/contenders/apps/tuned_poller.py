"""A polling scheduler as good as it gets: the same fast client as tarry, batches everywhere, SKIP LOCKED.

python -m benchmarks.contenders.apps.tuned_poller, with BENCH_URL, BENCH_DSN, BENCH_DELAY and BENCH_MARKS set
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg
import uvloop

from benchmarks.contenders.marks import Marker
from tarry.amqp.consumer import Consumer
from tarry.amqp.field_tables import entry, pick
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.amqp.url import Address

REQUESTS = "bench.requests"
POLL_S = float(os.environ.get("BENCH_POLL", "1"))
BATCH = 500
QUEUE = b"original_queue"
INSERT = """
insert into retry_task (message_id, queue, properties, body, due)
select m, q, p, b, now() + make_interval(secs => %s)
from unnest(%s::text[], %s::text[], %s::bytea[], %s::bytea[]) as t (m, q, p, b)
"""
TAKE = """
select id, queue, properties, body, extract(epoch from due)::float8 from retry_task
where status = 'pending' and due <= now() order by due limit %s for update skip locked
"""
DONE = "update retry_task set status = 'sent', sent_at = now() where id = any(%s)"

Sql = psycopg.AsyncConnection[Any]


async def take_in(address: Address, sql: Sql, marker: Marker) -> None:
    delay = float(os.environ["BENCH_DELAY"])
    consumer = await Consumer.open(address, REQUESTS, "tuned poller: intake", batch=BATCH)
    async for batch in consumer.batches():
        ids = [(one.properties.message_id or b"").decode() for one in batch]
        queues = [pick(one.properties.headers or b"", {QUEUE})[QUEUE].text() for one in batch]
        properties = [b"".join(one.properties.encode()) for one in batch]
        await sql.execute(INSERT, (delay, ids, queues, properties, [bytes(one.body) for one in batch]), binary=True)
        await sql.commit()
        consumer.ack([one.tag for one in batch])
        marker.scheduled(len(batch))


async def poll(address: Address, sql: Sql) -> None:
    publisher = await Publisher.open(address, "tuned poller: due")
    while True:
        started = time.monotonic()
        while await _some(publisher, sql) == BATCH:
            pass
        await asyncio.sleep(max(0.0, started + POLL_S - time.monotonic()))


async def _some(publisher: Publisher, sql: Sql) -> int:
    found = await (await sql.execute(TAKE, (BATCH,), binary=True)).fetchall()
    if found:
        outcomes = await publisher.publish([_message(*task) for task in found])
        sent = [task[0] for task, word in zip(found, outcomes, strict=True) if word is PublishOutcome.CONFIRMED]
        await sql.execute(DONE, (sent,), binary=True)
    await sql.commit()
    return len(found)


def _message(id_: int, queue: str, properties: bytes, body: bytes, due: float) -> Message:
    """As it came, and when it was due."""
    found = Properties.decode(properties)
    found.headers = (found.headers or b"") + entry("due-ms", int(due * 1000))
    found.delivery_mode = PERSISTENT
    return Message("", queue, found, body, str(id_))


async def main() -> None:
    address = Address.parse(os.environ["BENCH_URL"])
    connections = [await psycopg.AsyncConnection.connect(os.environ["BENCH_DSN"]) for _ in range(2)]
    await asyncio.gather(take_in(address, connections[0], Marker()), poll(address, connections[1]))


if __name__ == "__main__":
    uvloop.run(main())

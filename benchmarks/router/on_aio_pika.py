"""The same router loop, written on aio-pika: same queue, same batches, same decision, same statements in Postgres.

python -m benchmarks.router.on_aio_pika COUNT [--no-audit], with the settings of the service in the environment
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid

import aio_pika
import uvloop
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage

from tarry.contract.identity import retry_id
from tarry.core.decide import Failure, Schedule, decide
from tarry.core.names import Destination, id_key
from tarry.core.states import State
from tarry.settings import load_settings
from tarry.store.claims import Store
from tarry.store.rows import Claim, Granted, Record

BATCH, IN_FLIGHT, LINGER = 500, 4, 0.004


class AioRouter:
    """Consume, claim, decide, publish confirmed, record, acknowledge."""

    def __init__(self, count: int, store: Store | None) -> None:
        self.settings = load_settings()
        self.topology = self.settings.read_topology()
        self.rules, self.names = self.topology.rules, self.topology.broker_names
        self.store, self.left = store, count
        self.waiting: list[AbstractIncomingMessage] = []
        self.some, self.done = asyncio.Event(), asyncio.Event()
        self.started = self.ended = 0.0
        self.exchange: AbstractExchange

    async def run(self) -> float:
        """Messages per second, from the first delivery to the last acknowledgement."""
        url, count = self.settings.address.url, self.left
        async with await aio_pika.connect(url) as publishing, await aio_pika.connect(url) as consuming:
            outgoing = await publishing.channel(publisher_confirms=True)
            self.exchange = await outgoing.get_exchange(self.names.delay, ensure=False)
            incoming = await consuming.channel()
            await incoming.set_qos(prefetch_count=BATCH * (IN_FLIGHT + 1))
            queue = await incoming.get_queue(self.names.scheduled, ensure=False)
            working = asyncio.create_task(self.batches())
            await queue.consume(self.on_message)
            await self.done.wait()
            working.cancel()
        return count / (self.ended - self.started)

    async def on_message(self, message: AbstractIncomingMessage) -> None:
        self.started = self.started or time.perf_counter()
        self.waiting.append(message)
        self.some.set()

    async def batches(self) -> None:
        slots = asyncio.Semaphore(IN_FLIGHT)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            await self.some.wait()
            if len(self.waiting) < BATCH:
                await asyncio.sleep(LINGER)
            batch, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
            if not self.waiting:
                self.some.clear()
            await slots.acquire()
            task = asyncio.create_task(self.handle(batch))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: slots.release())

    async def handle(self, batch: list[AbstractIncomingMessage]) -> None:
        ids = [retry_id(str(one.message_id), str(one.headers["original_queue"])) for one in batch]
        granted = await self.claim(ids, batch)
        records = [self.decide(one, granted[id_]) for id_, one in zip(ids, batch, strict=True)]
        sent = [self.publish(one, record) for one, record in zip(batch, records, strict=True)]
        await asyncio.gather(*sent)
        if self.store is not None:
            await self.store.record(records)
        for one in batch:
            await one.ack()
        self.left -= len(batch)
        if self.left <= 0:
            self.ended = time.perf_counter()
            self.done.set()

    async def claim(self, ids: list[str], batch: list[AbstractIncomingMessage]) -> dict[str, Granted]:
        if self.store is None:
            return {id_: Granted(id_, 1, 0, 0) for id_ in ids}
        answer = await self.store.claim(
            [
                Claim(id_, 1, False, bool(one.redelivered), 0, str(one.headers["original_queue"]), one.message_id, None)
                for id_, one in zip(ids, batch, strict=True)
            ]
        )
        return answer.granted

    def decide(self, one: AbstractIncomingMessage, granted: Granted) -> Record:
        headers, now = one.headers, time.time_ns() // 1_000_000
        failure = Failure(
            str(headers["original_queue"]),
            error_type=str(headers["error_type"]),
            error_reason=str(headers["error_reason"]),
        )
        decision = decide(failure, self.rules, now, random.random())
        assert isinstance(decision, Schedule)
        id_ = retry_id(str(one.message_id), failure.queue)
        way = (*decision.itinerary.keys, id_key(id_, granted.round), Destination("queue", failure.queue).key)
        one.headers |= {"tarry-id": id_, "tarry-round": granted.round, "tarry-due-ms": decision.due_ms, "BCC": [*way]}
        return Record(
            id_,
            granted.round,
            State.SCHEDULED,
            failure.queue,
            routing_key=one.routing_key or "",
            message_id=one.message_id,
            retry_count=decision.retry_count,
            max_retries=decision.max_retries,
            policy=decision.policy.name,
            error_class=decision.error_class,
            error_type=failure.error_type,
            error_reason=failure.error_reason,
            since_ms=granted.since_ms,
            due_ms=decision.due_ms,
            delay_ms=decision.itinerary.delay_ms,
            tier=self.names.tier(decision.itinerary.delay_ms),
            body=one.body,
            properties=one.properties.marshal() if self.store is not None else None,
        )

    async def publish(self, one: AbstractIncomingMessage, record: Record) -> None:
        message = aio_pika.Message(
            one.body, headers=one.headers, message_id=one.message_id, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        await self.exchange.publish(message, record.routing_key, mandatory=True)


async def main(count: int, *, audit: bool) -> None:
    store = Store(load_settings().dsn, f"aio-{uuid.uuid4()}") if audit else None
    if store is not None:
        await store.open()
    print(json.dumps({"rate": await AioRouter(count, store).run()}))
    if store is not None:
        await store.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), audit="--no-audit" not in sys.argv))

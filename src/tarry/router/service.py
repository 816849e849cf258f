"""The service: the flow on live connections, the tap beside it, and an orderly end."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from pika.exceptions import AMQPError

from tarry.audit.store import Store
from tarry.audit.tap import Tap
from tarry.broker.address import Address
from tarry.broker.consumer import Consumer
from tarry.broker.publisher import Message, Outcome, Publisher
from tarry.contract.request import Acceptance, Delivery
from tarry.errors import TarryError
from tarry.router.actions import log_actions
from tarry.router.destinations import Destinations
from tarry.router.flow import Flow
from tarry.router.keep import keep
from tarry.router.ledger import ResilientLedger
from tarry.router.metrics import Metrics
from tarry.topology.model import Topology

log = structlog.get_logger()

IN_FLIGHT = 3
"""Batches at once: the next is being claimed while the last is being confirmed."""

TRY_AGAIN = 1.0
"""Seconds that a request rests whose publish was not taken, so that a full tier is no busy loop."""

LAST_BATCHES = 8.0
"""Seconds that batches in flight have at the end."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Outlet:
    """The publisher of the moment; without one every answer is UNKNOWN, and requests stay where they are."""

    publisher: Publisher | None = None

    async def publish(self, messages: Sequence[Message]) -> list[Outcome]:
        if self.publisher is None:
            return [Outcome.UNKNOWN] * len(messages)
        return await self.publisher.publish(messages)


@dataclass(slots=True)
class Service:
    """One router. Any number of them can run side by side."""

    topology: Topology
    address: Address
    store: Store
    metrics: Metrics = field(default_factory=Metrics)
    batch: int = 500
    consuming: bool = False
    """Whether requests are being taken right now."""
    _outlet: Outlet = field(default_factory=Outlet)
    _batches: set[asyncio.Task[None]] = field(default_factory=set)
    _ledger: ResilientLedger = field(init=False)
    _destinations: Destinations = field(init=False)
    _tap: Tap = field(init=False)

    def __post_init__(self) -> None:
        names = self.topology.broker_names
        self._ledger = ResilientLedger(self.store, self._outlet.publish, names)
        self._destinations = Destinations(self.address, names)
        self._tap = Tap(self.store, names, now_ms, self.metrics.count_return)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the batches in flight are finished."""
        await self.store.open()
        parts = [
            asyncio.create_task(keep("router", lambda: self._route(stop), stop, self._restarted)),
            asyncio.create_task(keep("tap", self._listen, stop, self._restarted)),
        ]
        try:
            ended = asyncio.create_task(stop.wait())
            await asyncio.wait([ended, *parts], return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    part.result()
            await self._finish_batches()
        finally:
            await _cancel(*parts)
            await self._ledger.close()
            await self._destinations.close()
            await self.store.close()

    @property
    def troubles(self) -> list[str]:
        """What keeps this router from its full service, for health checks."""
        found = [] if self.consuming else ["the broker is not delivering requests"]
        publisher = self._outlet.publisher
        if publisher is not None and publisher.link.blocked:
            found.append("the broker has an alarm and takes no publishes")
        return found

    @property
    def degraded(self) -> str | None:
        """Postgres is away: retries go on, their history waits."""
        return self._ledger.trouble or self._tap.trouble

    def _restarted(self, part: str) -> None:
        self.metrics.reconnects.labels(part).inc()

    async def _route(self, stop: asyncio.Event) -> str:
        """One life of the two connections; either one's end is the end of both."""
        names = self.topology.broker_names
        publisher = await Publisher.open(self.address, "router: publish")
        try:
            consumer = await Consumer.open(
                self.address,
                names.scheduled,
                "router: consume",
                batch=self.batch,
                prefetch=self.batch * (IN_FLIGHT + 1),
            )
            try:
                self._outlet.publisher, self.consuming = publisher, True
                publisher.link.closed.add_done_callback(lambda done: consumer.link.end(done.result()))
                return await self._consume(consumer, self._flow(publisher.link.frame_max), stop)
            finally:
                self.consuming = False
                await consumer.link.close()
        finally:
            self._outlet.publisher = None
            await publisher.link.close()

    def _flow(self, frame_max: int) -> Flow:
        topology, names = self.topology, self.topology.broker_names
        return Flow(
            names=names,
            rules=topology.rules,
            accept=Acceptance(names, topology.destinations, topology.failures),
            ledger=self._ledger,
            publish=self._outlet.publish,
            attach=self._destinations,
            now_ms=now_ms,
            draw=random.random,
            new_id=lambda: str(uuid.uuid4()),
            frame_max=frame_max,
        )

    async def _consume(self, consumer: Consumer, flow: Flow, stop: asyncio.Event) -> str:
        slots = asyncio.Semaphore(IN_FLIGHT)

        def ended(task: asyncio.Task[None]) -> None:
            self._batches.discard(task)
            slots.release()

        async for batch in consumer.batches():
            if stop.is_set():
                break
            await slots.acquire()
            task = asyncio.create_task(self._handle(batch, consumer, flow))
            self._batches.add(task)
            task.add_done_callback(ended)
        if stop.is_set():
            await self._finish_batches()
            return "stopped"
        await _cancel(*self._batches)
        return consumer.link.closed.result()

    async def _handle(self, batch: list[Delivery], consumer: Consumer, flow: Flow) -> None:
        started = time.perf_counter()
        try:
            result = await flow.handle(batch)
        except (TarryError, AMQPError, OSError) as error:
            log.warning("batch failed, will try again", size=len(batch), error=str(error))
            await self._rest_and_requeue(consumer, [delivery.tag for delivery in batch])
            return
        for tag in result.acked:
            consumer.ack(tag)
        self.metrics.count(result, time.perf_counter() - started)
        log_actions(result, flow.names, flow.rules.ladder)
        await self._rest_and_requeue(consumer, result.requeued)

    async def _rest_and_requeue(self, consumer: Consumer, tags: Sequence[int]) -> None:
        if tags:
            await asyncio.sleep(TRY_AGAIN)
            for tag in tags:
                consumer.requeue(tag)

    async def _listen(self) -> str:
        """One life of the tap's connection."""
        consumer = await Consumer.open(self.address, self.topology.broker_names.audit, "tap")
        try:
            async for batch in consumer.batches():
                handled = asyncio.create_task(self._tap.handle(batch))
                either: list[asyncio.Future[None] | asyncio.Future[str]] = [handled, consumer.link.closed]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not handled.done():
                    await _cancel(handled)
                    break
                handled.result()
                for delivery in batch:
                    consumer.ack(delivery.tag)
            return consumer.link.closed.result()
        finally:
            await consumer.link.close()

    async def _finish_batches(self) -> None:
        if self._batches:
            await asyncio.wait(set(self._batches), timeout=LAST_BATCHES)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task

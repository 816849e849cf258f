"""The service's broker connections: each reads one queue in batches until it is lost, and is then opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial

import structlog
from pika.exceptions import ChannelClosedByBroker

from tarry.amqp.consumer import Consumer
from tarry.amqp.delivery import Delivery
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.amqp.url import Address
from tarry.core.names import Check
from tarry.errors import BrokerError, BrokerUnreachableError
from tarry.router.batches import BatchResult, GiveUp
from tarry.router.check import CheckHandler
from tarry.router.layover import LayoverHandler
from tarry.router.pipeline import FRAME_MAX, CurrentPipeline, RequestHandler, Result
from tarry.service.startup_checks import check_way_out, refused
from tarry.service.tap import TapQueue
from tarry.tasks import either, sleep_unless
from tarry.topology.model import Topology

log = structlog.get_logger()

IN_FLIGHT = 4
"""Concurrent batches of requests: the next is being claimed while the previous is being confirmed."""


@dataclass(slots=True)
class CurrentPublisher:
    """The current publisher. Without one every outcome is UNKNOWN, and requests stay where they are."""

    _publisher: Publisher | None = None

    @contextmanager
    def using(self, publisher: Publisher) -> Iterator[None]:
        self._publisher = publisher
        try:
            yield
        finally:
            self._publisher = None

    async def publish(self, messages: Sequence[Message]) -> list[PublishOutcome]:
        if self._publisher is None:
            return [PublishOutcome.UNKNOWN] * len(messages)
        return await self._publisher.publish(messages)

    def frame_max(self) -> int:
        return FRAME_MAX if self._publisher is None else self._publisher.link.frame_max

    @property
    def blocked(self) -> bool:
        """Whether the broker has an alarm."""
        return self._publisher is not None and self._publisher.link.blocked


@dataclass(slots=True)
class IntakeSwitch:
    """Whether requests are read from their queue, and the consumer that reads them now."""

    note: str | None = None
    """Who paused the intake, and why; None while it is not paused."""
    _consumer: Consumer | None = None
    _resumed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def paused(self) -> bool:
        return self.note is not None

    @property
    def consuming(self) -> bool:
        """Whether the broker delivers requests right now."""
        return self._consumer is not None

    def set(self, note: str | None) -> None:
        """With a note, requests wait in their queue; messages that are already in tiers come due as usual."""
        pauses = note is not None and not self.paused
        self.note = note
        if pauses:
            self._resumed.clear()
            self.end_consumer()
        elif note is None:
            self._resumed.set()

    def end_consumer(self) -> None:
        """Ends the consumer when its batches are done. Unless the intake is paused, new connections are opened."""
        if self._consumer is not None:
            self._consumer.finish()

    @contextmanager
    def using(self, consumer: Consumer) -> Iterator[None]:
        self._consumer = consumer
        if self.paused:  # since the consumer began to connect
            self.end_consumer()
        try:
            yield
        finally:
            self._consumer = None

    async def resumed(self) -> None:
        """Waits while the intake is paused."""
        if self.paused:
            await self._resumed.wait()


LONG = 15.0
"""Seconds of nacks before a new connection is tried, and between two such attempts."""

PAUSE = 10.0
"""Seconds without a nack after which a series of nacks counts as over."""


@dataclass(slots=True)
class NackMonitor:
    """Detects nacks that do not end. RabbitMQ 3.10 continues to nack publishes on a channel that once met a full queue,
    even after the limit is removed.
    """

    clock: Callable[[], float]
    _since: float | None = None
    _last: float = 0.0

    def are_lasting(self, result: Result) -> bool:
        """Whether nacks have continued for long; the time starts again after each True."""
        if not any(outcome is PublishOutcome.NACKED for _, outcome in (*result.stuck, *result.detours)):
            return False
        now = self.clock()
        if self._since is None or now - self._last > PAUSE:
            self._since = now
        self._last = now
        if now - self._since < LONG:
            return False
        self._since = None
        return True


FIRST_REST = 1.0
LONGEST_REST = 4.0
"""Seconds that a request waits after its publish was not accepted, so that a full tier causes no busy loop."""

Handle = Callable[[list[Delivery]], Awaitable[BatchResult]]


@dataclass(slots=True, eq=False)
class Batches:
    """The batches of one consumer. A batch in progress is completed even if the connection is lost."""

    consumer: Consumer
    handle: Handle
    at_once: int
    """Number of concurrent batches: the next is processed while the previous is being confirmed."""
    orphans: set[asyncio.Task[None]]
    """Batches whose connection is lost; they continue, and `run` does not wait for them."""
    working: set[asyncio.Task[None]] = field(default_factory=set)
    _rest: float = FIRST_REST
    _last_rest: float = 0.0

    async def run(self) -> str:
        """Runs until the consumer ends; returns the reason, which is empty if the consumer was asked to finish.

        Waits for the batches in progress unless the connection is lost.
        """
        closed = self.consumer.link.closed
        slots = asyncio.Semaphore(self.at_once)
        async for batch in self.consumer.batches():
            await slots.acquire()
            if self.consumer.link.given_up():
                break  # the broker may have given these deliveries to another consumer by now
            task = asyncio.create_task(self._work(batch))
            self.working.add(task)
            task.add_done_callback(lambda done: self._ended(done, slots))
        if not closed.done() and self.working:
            await self._last_ones()
        self.orphans.update(self.working)
        return closed.result() if closed.done() else ""

    async def _last_ones(self) -> None:
        try:
            await asyncio.wait(set(self.working))
        except asyncio.CancelledError:
            for task in self.working:
                task.cancel()
            raise

    def _ended(self, task: asyncio.Task[None], slots: asyncio.Semaphore) -> None:
        self.working.discard(task)
        self.orphans.discard(task)
        slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.consumer.link.end(f"a batch failed: {error!r}")

    async def _work(self, batch: list[Delivery]) -> None:
        settled = await self.handle(batch)
        self.consumer.ack(settled.acked)
        if settled.requeued:
            # Outside the slot: a request that must wait does not block other batches.
            asyncio.get_running_loop().call_later(self._next_rest(), self.consumer.requeue, settled.requeued)

    def _next_rest(self) -> float:
        """Seconds to wait; the wait grows as long as requeues follow each other closely."""
        now = asyncio.get_running_loop().time()
        again = now - self._last_rest < 2 * self._rest
        self._rest = min(2 * self._rest, LONGEST_REST) if again else FIRST_REST
        self._last_rest = now
        return self._rest


@dataclass(slots=True)
class RunningBatches:
    """All batches in progress, so that a shutdown can wait for them."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once no new batches start."""
    _running: set[Batches] = field(default_factory=set)
    _orphans: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, consumer: Consumer, handle: Handle, at_once: int) -> str:
        """Runs until the consumer ends; returns the reason, which is empty if the consumer was asked to finish."""
        batches = Batches(consumer, handle, at_once, self._orphans)
        self._running.add(batches)
        try:
            return await batches.run()
        finally:
            self._running.discard(batches)

    async def finish(self, patience: float) -> None:
        """Starts no new batches; those in progress get `patience` seconds, then they are left to be delivered again."""
        self.over.set()
        for batches in self._running:
            batches.consumer.finish()
        working = self._orphans.union(*(batches.working for batches in self._running))
        if working:
            _, late = await asyncio.wait(working, timeout=patience)
            for task in late:
                task.cancel()


@dataclass(frozen=True, slots=True)
class QueueReader:
    """Reads one queue."""

    topology: Topology
    address: Address
    running: RunningBatches
    queue: str
    purpose: str
    """The name of the connection."""
    batch: int
    prefetched: int
    """Batches that the broker delivers in advance."""
    linger: float

    @asynccontextmanager
    async def consumer(self) -> AsyncIterator[Consumer]:
        try:
            consumer = await Consumer.open(
                self.address,
                self.queue,
                self.purpose,
                batch=self.batch,
                prefetch=self.batch * self.prefetched,
                linger=self.linger,
            )
        except ChannelClosedByBroker as error:
            raise refused(error, self.topology, self.address) from error
        try:
            yield consumer
        finally:
            await consumer.link.close()

    async def read(self, handler: Callable[[Consumer], Handle]) -> str:
        """Runs one connection until it ends; returns the reason."""
        async with self.consumer() as consumer:
            return await self.running.run(consumer, handler(consumer), 1)


@dataclass(frozen=True, slots=True)
class RequestConnections:
    """The router's two connections: one consumes requests, the other publishes."""

    reader: QueueReader
    handler: RequestHandler
    publisher: CurrentPublisher
    intake: IntakeSwitch

    async def run(self) -> str:
        """Runs both until one of them ends, which ends both; returns the reason."""
        publisher = await Publisher.open(self.reader.address, "router: publish")
        try:
            with self.publisher.using(publisher):
                await check_way_out(publisher, self.reader.topology, self.reader.address)
                while (ended := await self._read_requests(publisher)) == "":
                    await either(self.intake.resumed(), publisher.link.closed)
                return ended
        finally:
            await publisher.link.close()

    async def _read_requests(self, publisher: Publisher) -> str:
        """Runs until a connection ends or an operator pauses the intake; returns the reason, empty for a pause."""
        if publisher.link.closed.done():
            return publisher.link.closed.result()
        if self.intake.paused:
            return ""
        async with self.reader.consumer() as consumer:
            publisher.link.closed.add_done_callback(lambda done: consumer.link.end(done.result()))
            with self.intake.using(consumer):
                handle = partial(self.handler, given_up=consumer.link.given_up)
                ended = await self.reader.running.run(consumer, handle, IN_FLIGHT)
        if ended or self.intake.paused:
            return ended
        return "the broker keeps refusing publishes: opening a new connection"


LOOK_AGAIN = 30.0
"""Seconds between attempts to read a queue that an installation does not have."""


@dataclass(frozen=True, slots=True)
class LayoverConnection:
    """Reads the layover queue. An installation of an earlier version may not have it, or the router's user may not read
    it. Everything else works without it, so the router runs, and says what to do.
    """

    reader: QueueReader
    handler: LayoverHandler

    async def run(self) -> str:
        """Runs one connection until it ends; returns the reason."""
        over = self.reader.running.over
        return await _read_if_possible(self.reader, self._handle, "the layover queue cannot be read", over)

    def _handle(self, consumer: Consumer) -> Handle:
        return partial(self.handler, given_up=consumer.link.given_up)


LOOK_EVERY = 1.0
"""Seconds between two looks at whether the policies have changed."""


@dataclass(frozen=True, slots=True)
class CheckConnections:
    """Reads the check queues of the policies that name an endpoint: a connection for each, and one that reports skips.

    What is not read returns when it expires. So if a queue is missing, or the router's user may not read it or not
    report, the router runs, and says what to do.
    """

    pipeline: CurrentPipeline
    reader: Callable[[str], QueueReader]
    handler: Callable[..., CheckHandler]
    """Makes the handler of a check; called with `check`, `publish` and `reject`."""
    address: Address
    over: asyncio.Event
    """Set when the service ends."""

    async def run(self) -> str:
        """Runs until a connection ends, or the service; returns the reason."""
        while not self.over.is_set():
            checks = self._wanted()
            if not checks:
                await sleep_unless(self.over, LOOK_EVERY)
            elif ended := await self._run(checks):
                return ended
        return ""

    def _wanted(self) -> frozenset[Check]:
        found = self.pipeline.current.rules.checks
        return frozenset(
            check for check, policy in found.items() if policy.eligibility and policy.eligibility.has_endpoint
        )

    async def _run(self, checks: frozenset[Check]) -> str:
        """Runs until a connection ends or the policies change; returns the reason, empty if they did."""
        publisher = await Publisher.open(self.address, "check: report")
        tasks = [asyncio.create_task(self._read(check, publisher)) for check in checks]
        tasks.append(asyncio.create_task(self._until_changed(checks)))
        try:
            done, _ = await asyncio.wait([publisher.link.closed, *tasks], return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await publisher.link.close()

    async def _until_changed(self, checks: frozenset[Check]) -> str:
        while self._wanted() == checks and not self.over.is_set():
            await sleep_unless(self.over, LOOK_EVERY)
        return ""

    async def _read(self, check: Check, publisher: Publisher) -> str:
        reader = self.reader(self.pipeline.current.names.check_queue(*check))

        def handler(consumer: Consumer) -> Handle:
            return self.handler(check=check, publish=publisher.publish, reject=consumer.reject)

        return await _read_if_possible(reader, handler, "the check queue cannot be read", self.over)


async def _read_if_possible(
    reader: QueueReader, handler: Callable[[Consumer], Handle], trouble: str, over: asyncio.Event
) -> str:
    """Runs one connection until it ends; returns the reason. While the queue is missing, or may not be read, it says so
    and tries again.
    """
    while not over.is_set():
        try:
            return await reader.read(handler)
        except BrokerUnreachableError:
            raise
        except (BrokerError, ChannelClosedByBroker) as error:
            do = f"run `tarry topology apply`, and let the router's user read {reader.queue}"
            log.warning(trouble, queue=reader.queue, reason=str(error), do=do)
            await sleep_unless(over, LOOK_AGAIN)
    return ""


@dataclass(frozen=True, slots=True)
class TapConnection:
    """Reads a queue of the audit, once the store can be written to."""

    reader: QueueReader
    tap: TapQueue
    give_up: GiveUp
    store_ready: asyncio.Event

    async def run(self) -> str:
        """Runs one connection until it ends; returns the reason."""
        await self.store_ready.wait()
        return await self.reader.read(lambda consumer: self.tap.handler(consumer, self.give_up))

"""What runs on live connections: requests, the tap and the strays, each through its own life and death."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from pika.exceptions import ChannelClosedByBroker

from tarry.audit.store import Store
from tarry.audit.tap import CancelledTap, Tap
from tarry.broker.address import Address
from tarry.broker.consumer import LINGER as AT_ONCE
from tarry.broker.consumer import Consumer
from tarry.broker.publisher import Publisher
from tarry.contract.request import Acceptance
from tarry.core.names import Names
from tarry.errors import AuditError, AuditUnavailableError
from tarry.router.actions import Action, actions
from tarry.router.batches import Batches
from tarry.router.checks import check_way_out, refused
from tarry.router.destinations import Destinations
from tarry.router.flow import Flow, Result
from tarry.router.keep import either, sleep_unless
from tarry.router.ledger import ResilientLedger
from tarry.router.metrics import Metrics
from tarry.router.outlet import Outlet
from tarry.router.refusals import Refusals
from tarry.router.requests import Requests
from tarry.router.strays import BATCH, Strays
from tarry.router.taps import BATCH as TAPPED
from tarry.router.taps import LINGER, Tapped
from tarry.router.threads import in_thread
from tarry.topology.model import Topology

log = structlog.get_logger()

LOOK_AGAIN = 2.0
"""Seconds between looks at a Postgres that was not there at the start."""

IN_FLIGHT = 4
"""Batches of requests at once: the next is being claimed while the last is being confirmed."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Parts:
    """The flow and its neighbours, wired together once; connections come and go."""

    topology: Topology
    address: Address
    store: Store
    migrate: Callable[[], object]
    metrics: Metrics
    batch: int
    write_actions: Callable[[Sequence[Action]], None]
    consuming: bool = False
    """Whether the broker delivers requests right now."""
    _outlet: Outlet = field(default_factory=Outlet)
    books_open: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once Postgres has answered and its tables are there."""
    _running: set[Batches] = field(default_factory=set)
    _orphans: set[asyncio.Task[None]] = field(default_factory=set)
    _refusals: Refusals = field(default_factory=lambda: Refusals(time.monotonic))
    _renew: Callable[[], None] = lambda: None
    """Ends this life of the router's connections when its batches are done."""
    _pause: Callable[[], None] = lambda: None
    """Ends taking requests, on connections that stay."""
    _names: Names = field(init=False)
    _ledger: ResilientLedger = field(init=False)
    _destinations: Destinations = field(init=False)
    _requests: Requests = field(init=False)
    _strays: Strays = field(init=False)
    _taps: tuple[Tapped, ...] = field(init=False)
    _intake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while requests are taken; an operator may have stopped that."""

    def __post_init__(self) -> None:
        self._names = names = self.topology.broker_names
        self._ledger = ResilientLedger(self.store, self._outlet.publish, names, now_ms)
        self._destinations = Destinations(self.address, names, time.monotonic)
        self._requests = Requests(self._flow(), self._tell)
        self._strays = Strays(
            lambda: self._requests.flow, self._ledger, self._destinations.again, self.metrics.count_strays
        )
        self._taps = (
            Tapped(names.audit, "tap", Tap(self.store, names, self.metrics.count_returns)),
            Tapped(names.cancelled, "cancelled", CancelledTap(self.store, names, self.metrics.count_cancelled)),
        )
        self._intake.set()
        self.use(self.topology)

    def use(self, topology: Topology) -> None:
        """Decide by these policies from the next batch on."""
        self._requests.flow = replace(self._requests.flow, rules=topology.rules, accept=_acceptance(topology))
        self.metrics.show_policies({policy.name: policy.max_retries for policy in topology.policies})

    @property
    def troubles(self) -> list[str]:
        """What keeps requests from moving."""
        found = [] if self.consuming or self.intake_paused else ["the broker is not delivering requests"]
        return [*found, "the broker has an alarm and takes no publishes"] if self._outlet.blocked else found

    @property
    def degraded(self) -> AuditError | None:
        """Why history waits, or None."""
        found = (self._ledger.trouble, *(tapped.writer.trouble for tapped in self._taps))
        return next((trouble for trouble in found if trouble is not None), None)

    @property
    def intake_paused(self) -> bool:
        return not self._intake.is_set()

    @intake_paused.setter
    def intake_paused(self, paused: bool) -> None:
        if paused:
            self._intake.clear()
            self._pause()
        else:
            self._intake.set()

    @property
    def blocked(self) -> bool:
        return self._outlet.blocked

    @property
    def spooled(self) -> int:
        return self._ledger.spooled

    @property
    def refused(self) -> int:
        return self._ledger.refused

    async def keep_books(self, stop: asyncio.Event) -> None:
        """Postgres may come later than we do; its tables must be there before anything is written."""
        while not stop.is_set():
            try:
                await in_thread(self.migrate, "migrate")
            except AuditUnavailableError as error:
                self._ledger.trouble = error
                log.warning("postgres is away, starting without it", error=str(error))
                await sleep_unless(stop, LOOK_AGAIN)
            else:
                self._ledger.trouble = None
                self.books_open.set()
                await stop.wait()

    async def route(self) -> str:
        """One life of the two connections of the router; either one's end is the end of both."""
        publisher = await Publisher.open(self.address, "router: publish")
        self._outlet.publisher = publisher
        try:
            await check_way_out(publisher, self.topology, self.address)
            while (ended := await self._take_requests(publisher)) == "":
                await either(self._intake.wait(), publisher.link.closed)
            return ended
        finally:
            self._outlet.publisher = None
            await publisher.link.close()

    async def _take_requests(self, publisher: Publisher) -> str:
        """Until the end of a connection, and why it ended; or until an operator pauses the intake: an empty reason."""
        if publisher.link.closed.done():
            return publisher.link.closed.result()
        if self.intake_paused:
            return ""
        async with self._consumer(self._names.scheduled, "router: consume", self.batch, IN_FLIGHT + 1) as consumer:
            publisher.link.closed.add_done_callback(lambda done: consumer.link.end(done.result()))
            self.consuming, self._renew, self._pause = True, consumer.finish, consumer.finish
            try:
                handle = partial(self._requests, given_up=consumer.link.given_up)
                ended = await self._run(Batches(consumer, handle, IN_FLIGHT, self._orphans))
            finally:
                self.consuming = False
        if ended or self.intake_paused:
            return ended
        return "the broker goes on refusing publishes, a new connection may help"

    def listeners(self) -> dict[str, Callable[[], Awaitable[str]]]:
        """By name, one life of the connection of each queue that the books read."""
        return {tapped.purpose: partial(self._listen, tapped) for tapped in self._taps}

    async def _listen(self, tapped: Tapped) -> str:
        await self.books_open.wait()
        async with self._consumer(tapped.queue, tapped.purpose, TAPPED, 3, LINGER) as consumer:
            handle = tapped.handler(consumer, partial(self._requests.flow.give_up, is_request=False))
            return await self._run(Batches(consumer, handle, 1, self._orphans))

    async def collect_strays(self) -> str:
        """One life of the connection for what found no way home."""
        async with self._consumer(self._names.unroutable, "strays", BATCH, 2) as consumer:
            return await self._run(Batches(consumer, self._strays, 1, self._orphans))

    async def finish(self, patience: float) -> None:
        """No new batches; those under way have so many seconds, then they are left to be delivered again."""
        for batches in self._running:
            batches.consumer.finish()
        working = self._orphans.union(*(batches.working for batches in self._running))
        if working:
            _, late = await asyncio.wait(working, timeout=patience)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        await asyncio.gather(self._ledger.close(), self._destinations.close())

    @asynccontextmanager
    async def _consumer(
        self, queue: str, purpose: str, batch: int, batches: int, linger: float = AT_ONCE
    ) -> AsyncIterator[Consumer]:
        try:
            consumer = await Consumer.open(
                self.address, queue, purpose, batch=batch, prefetch=batch * batches, linger=linger
            )
        except ChannelClosedByBroker as error:
            raise refused(error, self.topology, self.address) from error
        try:
            yield consumer
        finally:
            await consumer.link.close()

    async def _run(self, batches: Batches) -> str:
        self._running.add(batches)
        try:
            return await batches.run()
        finally:
            self._running.discard(batches)

    def _flow(self) -> Flow:
        return Flow(
            names=self._names,
            rules=self.topology.rules,
            accept=_acceptance(self.topology),
            ledger=self._ledger,
            publish=self._outlet.publish,
            attach=self._destinations,
            now_ms=now_ms,
            draw=random.random,
            new_id=lambda: str(uuid.uuid4()),
            frame_max=self._outlet.frame_max,
        )

    def _tell(self, result: Result) -> None:
        self.metrics.count(result)
        if self._refusals.go_on(result):
            self._renew()
        self.write_actions(list(actions(result, self._names, self._requests.flow.rules.ladder)))


def _acceptance(topology: Topology) -> Acceptance:
    return Acceptance(topology.broker_names, topology.destinations, topology.failures)

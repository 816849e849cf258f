"""The service: the parts that run side by side, how they start, and an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from tarry.audit.store import Store
from tarry.audit.upkeep import Findings
from tarry.broker.address import Address
from tarry.errors import AuditError, BrokerUnreachableError
from tarry.router.actions import Action, log_actions
from tarry.router.checks import check_broker
from tarry.router.depth import measure
from tarry.router.keep import FIRST_PAUSE, LONGEST_PAUSE, either, keep, sleep_unless
from tarry.router.maintenance import maintain
from tarry.router.metrics import Metrics
from tarry.router.parts import Parts
from tarry.router.reload import Reload
from tarry.router.threads import in_thread
from tarry.topology.model import Topology

log = structlog.get_logger()

LAST_BATCHES = 3.0
"""Seconds that batches in flight have at the end."""

GOODBYE = 1.5
"""Seconds for the connections after that."""

BOOKS_FIRST = 2.0
"""Seconds that Postgres has at the start, before retries go on without it."""


Beside = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs until told to stop."""


@dataclass(slots=True)
class Service:
    """One router. Any number of them can run side by side."""

    topology: Topology
    address: Address
    store: Store
    migrate: Callable[[], object]
    """Brings the database up to date; blocking."""
    metrics: Metrics = field(default_factory=Metrics)
    batch: int = 500
    write_actions: Callable[[Sequence[Action]], None] = log_actions
    files: tuple[Path, Callable[[], Topology]] | None = None
    """The topology's folder and how to read it anew; None means that it never changes."""
    keeper: Callable[[], Findings] | None = None
    """One pass over the books; blocking. None makes none."""
    look_every: float = 60.0
    """Seconds between two passes."""
    on_topology: Callable[[Topology], None] = lambda _: None
    """Told when changed files are in use."""
    beside: Mapping[str, Beside] = field(default_factory=dict)
    """What else runs as long as the service does, once its tables are there; by name, told when to stop."""
    reload: Reload | None = field(init=False, default=None)
    _waiting: str | None = "it is starting"
    _intake_note: str | None = None
    _parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self._parts = Parts(
            self.topology, self.address, self.store, self.migrate, self.metrics, self.batch, self.write_actions
        )
        if self.files is not None:
            folder, read = self.files
            self.reload = Reload(
                folder,
                read,
                self.address,
                self._use,
                self.topology,
                lambda it: self.metrics.reloads.labels(it).inc(),
            )

    def _use(self, topology: Topology) -> None:
        """From the next batch on, and from the next action of an operator."""
        self.topology = topology
        self._parts.use(topology)
        self.on_topology(topology)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the batches in flight are finished."""
        if not await self._broker_is_there(stop):
            return
        await self.store.open()
        books = asyncio.create_task(self._parts.keep_books(stop), name="books")
        await self._books_first(books)
        tasks = [books, *(asyncio.create_task(part, name=name) for name, part in self._running(stop).items())]
        ended = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            stop.set()
            ended.cancel()
            await self._end(tasks)

    @property
    def troubles(self) -> list[str]:
        """What keeps this router from its service, for health checks."""
        return [self._waiting] if self._waiting else self._parts.troubles

    def show_state(self) -> None:
        """Into the metrics, when somebody looks at them."""
        metrics, parts = self.metrics, self._parts
        metrics.show_trouble(parts.degraded)
        metrics.paused.set(parts.intake_paused)
        metrics.blocked.set(parts.blocked)
        metrics.consuming.set(parts.consuming)
        metrics.spooled.set(parts.spooled)
        metrics.refused.set(parts.refused)

    @property
    def degraded(self) -> AuditError | None:
        """Postgres is away: retries go on, their history waits."""
        return self._parts.degraded

    @property
    def intake_note(self) -> str | None:
        """Who has stopped the taking of requests, and why; None while they are taken."""
        return self._intake_note

    def set_intake(self, note: str | None) -> None:
        """With a note, requests wait in their queue; what waits in tiers already comes due as ever."""
        self._intake_note = note
        if self._parts.intake_paused != (note is not None):
            self._parts.intake_paused = note is not None

    def _running(self, stop: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
        parts, again = self._parts, self._restarted
        running = {
            "router": keep("router", parts.route, stop, again),
            **{name: keep(name, listen, stop, again) for name, listen in parts.listeners().items()},
            "strays": keep("strays", parts.collect_strays, stop, again),
            "depth": measure(self.metrics.depth, self.address, self.topology.broker_names, stop),
        }
        if self.reload is not None:
            running["reload"] = self.reload.watch(stop)
        if self.keeper is not None:
            tell = self.metrics.count_pass
            running["upkeep"] = self._once_open(maintain(self.keeper, tell, stop, self.look_every), stop)
        for name, run in self.beside.items():
            running[name] = self._once_open(_kept_beside(name, run, stop), stop)
        return running

    async def _once_open(self, part: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
        """What needs the tables waits for them."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await either(self._parts.books_open.wait(), stopped)
            if not stop.is_set():
                await part
        finally:
            stopped.cancel()
            part.close()

    async def _books_first(self, books: asyncio.Task[None]) -> None:
        """Postgres is nearly always there: a moment's patience, and the first requests are claimed like all others."""
        opened = asyncio.create_task(self._parts.books_open.wait())
        await asyncio.wait([books, opened], timeout=BOOKS_FIRST, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()

    async def _broker_is_there(self, stop: asyncio.Event) -> bool:
        """Waits for a broker; refuses one that would lose or strand messages. False if told to stop meanwhile."""
        pause = FIRST_PAUSE
        while not stop.is_set():
            checked = asyncio.create_task(
                in_thread(lambda: check_broker(self.topology, self.address), "start-up check")
            )
            ended = asyncio.create_task(stop.wait())
            await asyncio.wait([checked, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not checked.done():
                checked.cancel()
                return False
            try:
                checked.result()
            except BrokerUnreachableError as error:
                self._waiting = f"waiting for the broker: {error}"
                log.warning("waiting for the broker", reason=str(error), pause=pause)
                await sleep_unless(stop, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._waiting = None
                return True
        return False

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Each step has its time, so that the whole is over within ten seconds whoever does not answer."""
        await self._parts.finish(LAST_BATCHES)
        _, late = await asyncio.wait(tasks, timeout=GOODBYE)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=0.5)
        await asyncio.gather(self._parts.close(), self.store.close())

    def _restarted(self, part: str) -> None:
        self.metrics.reconnects.labels(part).inc()


async def _kept_beside(name: str, run: Beside, stop: asyncio.Event) -> None:
    """Whatever goes wrong beside the router, retries go on; it is told, and tried again."""
    while not stop.is_set():
        try:
            await run(stop)
        except Exception:
            log.exception("ended by a mistake, starting it again", part=name, pause=LONGEST_PAUSE)
            await sleep_unless(stop, LONGEST_PAUSE)

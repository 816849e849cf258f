"""The service: how its parts are built and connected, how they start, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from tarry.amqp.consumer import LINGER
from tarry.amqp.url import Address
from tarry.audit.maintenance import AuditFindings, maintain
from tarry.contract.message import Acceptance
from tarry.core.adaptive import NOTHING_GIVEN_UP, ErrorsGivenUp
from tarry.core.budgets import NO_CAPS, Caps
from tarry.errors import AuditError, AuditUnavailableError, BrokerUnreachableError
from tarry.router.actions import Action, actions, log_actions, skip_actions, success_actions
from tarry.router.budgets import Budgets
from tarry.router.check import BATCH as CHECK_BATCH
from tarry.router.check import CheckHandler
from tarry.router.destinations import Destinations
from tarry.router.eligibility import EligibilityCheck
from tarry.router.layover import BATCH as LAYOVER_BATCH
from tarry.router.layover import LayoverHandler
from tarry.router.ledger import ResilientLedger
from tarry.router.pipeline import CurrentPipeline, Pipeline, RequestHandler, Result
from tarry.router.traces import batch_spans, cancel_spans, return_spans
from tarry.router.unroutable import BATCH as UNROUTABLE_BATCH
from tarry.router.unroutable import UnroutableHandler
from tarry.service.connections import (
    IN_FLIGHT,
    CheckConnections,
    CurrentPublisher,
    IntakeSwitch,
    LayoverConnection,
    NackMonitor,
    QueueReader,
    RequestConnections,
    RunningBatches,
    TapConnection,
)
from tarry.service.depth import measure
from tarry.service.heartbeat import Heartbeat
from tarry.service.metrics import Metrics
from tarry.service.reload import Reload
from tarry.service.startup_checks import check_broker
from tarry.service.tap import BATCH as TAP_BATCH
from tarry.service.tap import LINGER as TAP_LINGER
from tarry.service.tap import RequeueCheck, TapListeners, TapQueue, make_taps
from tarry.service.tracing import SpanSender
from tarry.store.claims import Store
from tarry.store.rows import RecordedCancel, RecordedReturn, SkippedWhenDue, Success
from tarry.tasks import FIRST_PAUSE, LONGEST_PAUSE, either, in_thread, keep, sleep_unless
from tarry.topology.model import Topology

log = structlog.get_logger()

LAST_BATCHES = 3.0
"""Seconds that batches in progress get at shutdown."""

GOODBYE = 1.5
"""Seconds that the connections get after that."""

STORE_FIRST = 2.0
"""Seconds to wait for Postgres at start-up before retries are processed without it."""

LOOK_AGAIN = 2.0
"""Seconds between checks of a Postgres that was unavailable at start-up."""

BackgroundTask = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs until the event is set."""


def build_service(
    topology: Topology,
    address: Address,
    store: Store,
    migrate: Callable[[], Awaitable[object]],
    *,
    intake: IntakeSwitch | None = None,
    background: Mapping[str, BackgroundTask] | None = None,
    batch: int = 500,
    write_actions: Callable[[Sequence[Action]], None] = log_actions,
    files: tuple[Path, Callable[[], Topology]] | None = None,
    on_topology: Callable[[Topology], None] = lambda _: None,
    keeper: Callable[[], Awaitable[AuditFindings]] | None = None,
    look_every: float = 60.0,
    metrics: Metrics | None = None,
    heartbeat: Heartbeat | None = None,
    count_returned: Callable[[Iterable[str]], None] = lambda _: None,
    count_failed: Callable[[Iterable[str]], None] = lambda _: None,
    caps: Callable[[], Caps] = lambda: NO_CAPS,
    errors_given_up: Callable[[], ErrorsGivenUp] = lambda: NOTHING_GIVEN_UP,
    notes: Callable[[], list[str]] = list,
    on_batch: Callable[[int], None] = lambda _: None,
    traces: SpanSender | None = None,
) -> Service:
    """Builds all parts of the service and connects them, once.

    `migrate` brings the database up to date. `background` are other tasks that run as long as the service, once its
    tables exist. `files` are the topology's folder and a function that reads it again; with None the topology never
    changes. `on_topology` is called when changed files are in use. `keeper` makes one audit pass every `look_every`
    seconds; None disables audit passes. `metrics` are given if others count in them too. `heartbeat` reports to the
    store that this router runs. `count_returned` and `count_failed` get the queues of returns, and of messages that
    failed after a return. `caps` are the most retries of some owners, as they are now. `errors_given_up` are those
    whose retries (almost) never succeed. `notes` are what limits the background tasks. `on_batch` is called with the
    number of requests in each batch. `traces` sends the spans of sampled messages; None makes none.
    """
    names, ladder, metrics = topology.broker_names, topology.ladder_shape, metrics or Metrics()

    # Held here, and changed while the service runs: publisher, intake, batches in progress, the pipeline's rules.
    publisher, running, intake = CurrentPublisher(), RunningBatches(), intake or IntakeSwitch()
    ledger = ResilientLedger(store, publisher.publish, names, now_ms)
    destinations = Destinations(address, names, time.monotonic)
    eligibility = EligibilityCheck(metrics.count_eligibility_request, metrics.count_eligibility_unknown)
    budgets = Budgets(ledger, random.random, metrics.count_budget_unapplied)
    pipeline = CurrentPipeline(
        Pipeline(
            names=names,
            rules=topology.rules,
            accept=_acceptance(topology),
            ledger=ledger,
            publish=publisher.publish,
            ensure_bound=destinations.ensure_bound,
            now_ms=now_ms,
            draw=random.random,
            new_id=lambda: str(uuid.uuid4()),
            frame_max=publisher.frame_max,
            ask_eligibility=eligibility,
            charge_budgets=budgets,
            caps=caps,
            errors_given_up=errors_given_up,
        )
    )
    nacks = NackMonitor(time.monotonic)

    def report(result: Result) -> None:
        metrics.count(result)
        on_batch(len(result.acked))
        if heartbeat is not None:
            heartbeat.handled += len(result.acked)
        count_failed(plan.queue for plan in result.moved if plan.round > 1)
        if nacks.are_lasting(result):
            intake.end_consumer()
        write_actions(list(actions(result, names, ladder)))
        if traces is not None:
            traces.add(batch_spans(result, names, ladder))

    requeued = RequeueCheck(store, metrics.count_requeued)

    listeners = _listeners(metrics, requeued, write_actions, count_returned, traces)

    def on_pass(findings: AuditFindings | None) -> None:
        metrics.count_pass(findings)
        listeners.on_successes(findings.presumed if findings else ())

    # The handlers of the queues, and the connections that read the queues.
    requests = RequestHandler(pipeline, report)
    unroutable = UnroutableHandler(pipeline, ledger, destinations.bind_again, metrics.count_unroutable)
    layovers = LayoverHandler(pipeline, ledger, metrics.count_layovers)
    taps = make_taps(store, names, listeners)
    migration = StoreMigration(migrate, ledger)

    def reader(queue: str, purpose: str, batch: int, prefetched: int, linger: float = LINGER) -> QueueReader:
        return QueueReader(topology, address, running, queue, purpose, batch, prefetched, linger)

    def tap_connection(tap: TapQueue) -> TapConnection:
        tap_reader = reader(tap.queue, tap.purpose, TAP_BATCH, 3, TAP_LINGER)
        return TapConnection(tap_reader, tap, pipeline.give_up_copy, migration.done)

    request_reader = reader(names.scheduled, "router: consume", batch, IN_FLIGHT + 1)
    unroutable_reader = reader(names.unroutable, "unroutable", UNROUTABLE_BATCH, 2)
    layover_reader = reader(names.layover, "layover", LAYOVER_BATCH, 2)
    check_reader = partial(reader, purpose="check", batch=CHECK_BATCH, prefetched=2)
    check_handler = partial(CheckHandler, pipeline=pipeline, eligibility=eligibility, count=metrics.count_checked)
    connections: dict[str, Callable[[], Awaitable[str]]] = {
        "router": RequestConnections(request_reader, requests, publisher, intake).run,
        **{tap.purpose: tap_connection(tap).run for tap in taps},
        "unroutable": partial(unroutable_reader.read, lambda _: unroutable),
        "layover": LayoverConnection(layover_reader, layovers).run,
        "checks": CheckConnections(pipeline, check_reader, check_handler, address, running.over).run,
    }

    def use(changed: Topology) -> None:
        pipeline.use(changed.rules, _acceptance(changed))
        eligibility.use(changed.policies)
        metrics.show_policies(changed.policies)
        on_topology(changed)

    metrics.show_policies(topology.policies)
    return Service(
        topology=topology,
        address=address,
        store=store,
        metrics=metrics,
        intake=intake,
        publisher=publisher,
        ledger=ledger,
        destinations=destinations,
        eligibility=eligibility,
        budgets=budgets,
        pipeline=pipeline,
        taps=taps,
        migration=migration,
        connections=connections,
        running=running,
        background={**(background or {}), "requeued": requeued.run},
        reload=_reload(topology, address, files, use, metrics),
        keeper=keeper,
        on_pass=on_pass,
        look_every=look_every,
        heartbeat=heartbeat,
        background_notes=notes,
        traces=traces,
    )


def _listeners(
    metrics: Metrics,
    requeued: RequeueCheck,
    write_actions: Callable[[Sequence[Action]], None],
    count_returned: Callable[[Iterable[str]], None],
    traces: SpanSender | None,
) -> TapListeners:
    """Counts what the taps record, writes the log lines of successes and skips, and makes the spans of waits."""

    def on_returns(found: Sequence[RecordedReturn]) -> None:
        metrics.count_returns(found)
        requeued.add(found)
        count_returned(one.seen.queue for one in found)
        if traces is not None:
            traces.add(return_spans(found))

    def on_cancelled(found: Sequence[RecordedCancel]) -> None:
        metrics.count_cancelled(found)
        if traces is not None:
            traces.add(cancel_spans(found))

    def on_successes(found: Sequence[Success]) -> None:
        metrics.count_successes(found)
        write_actions(list(success_actions(found)))

    def on_skips(found: Sequence[SkippedWhenDue]) -> None:
        metrics.count_skips(found)
        write_actions(list(skip_actions(found)))

    return TapListeners(on_returns, on_successes, on_skips, on_cancelled)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _acceptance(topology: Topology) -> Acceptance:
    return Acceptance(topology.broker_names, topology.acceptable, topology.failures)


def _reload(
    topology: Topology,
    address: Address,
    files: tuple[Path, Callable[[], Topology]] | None,
    use: Callable[[Topology], None],
    metrics: Metrics,
) -> Reload | None:
    if files is None:
        return None
    folder, read = files
    return Reload(folder, read, address, use, topology, lambda outcome: metrics.reloads.labels(outcome).inc())


@dataclass(frozen=True, slots=True)
class StoreMigration:
    """Migrates the tables, which must exist before any write; Postgres may start later than the service."""

    migrate: Callable[[], Awaitable[object]]
    ledger: ResilientLedger
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once Postgres has answered and its tables exist."""

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.migrate()
            except AuditUnavailableError as error:
                self.ledger.store_is_unavailable(error)
                log.warning("postgres unavailable, starting without it", error=str(error))
                await sleep_unless(stop, LOOK_AGAIN)
            else:
                self.ledger.store_is_ready()
                self.done.set()
                await stop.wait()


@dataclass(slots=True)
class Service:
    """One router. Any number of them can run concurrently. `build_service` makes it."""

    topology: Topology
    """As it was when the service started."""
    address: Address
    store: Store
    metrics: Metrics
    intake: IntakeSwitch
    publisher: CurrentPublisher
    ledger: ResilientLedger
    destinations: Destinations
    eligibility: EligibilityCheck
    budgets: Budgets
    pipeline: CurrentPipeline
    taps: Sequence[TapQueue]
    migration: StoreMigration
    connections: Mapping[str, Callable[[], Awaitable[str]]]
    """By name, functions that each run a connection until it ends, and return the reason."""
    running: RunningBatches
    background: Mapping[str, BackgroundTask]
    reload: Reload | None
    keeper: Callable[[], Awaitable[AuditFindings]] | None
    """Makes one audit pass. None disables audit passes."""
    on_pass: Callable[[AuditFindings | None], None]
    """Called after each audit pass; with None if it failed."""
    look_every: float
    """Seconds between two audit passes."""
    heartbeat: Heartbeat | None
    background_notes: Callable[[], list[str]]
    """What limits the background tasks."""
    traces: SpanSender | None = None
    _waiting: str | None = "it is starting"

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set, then finishes the batches in progress."""
        if not await self._broker_is_there(stop):
            return
        await self.store.open()
        migration = asyncio.create_task(self.migration.run(stop), name="migrate store")
        await self._wait_for_store(migration)
        tasks = [migration, *(asyncio.create_task(part, name=name) for name, part in self._parts(stop).items())]
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
        """What prevents this router from moving requests, for health checks."""
        if self._waiting:
            return [self._waiting]
        found = [] if self.intake.consuming or self.intake.paused else ["the broker is not delivering requests"]
        return [*found, "the broker has an alarm and accepts no publishes"] if self.publisher.blocked else found

    def show_state(self) -> None:
        """Copies the current state into the metrics; called when they are read."""
        self.metrics.show_trouble(self.degraded)
        self.metrics.paused.set(self.intake.paused)
        self.metrics.blocked.set(self.publisher.blocked)
        self.metrics.consuming.set(self.intake.consuming)
        self.metrics.spooled.set(self.ledger.spooled)
        self.metrics.refused.set(self.ledger.refused)

    @property
    def degraded(self) -> AuditError | None:
        """The error while Postgres is unavailable, or None: retries continue, and their history is written later."""
        found = (self.ledger.trouble, *(tap.writer.trouble for tap in self.taps))
        return next((trouble for trouble in found if trouble is not None), None)

    @property
    def notes(self) -> list[str]:
        """What limits this router, without preventing it from moving requests: no Postgres, a paused intake, budgets
        that are not applied, an eligibility endpoint that does not answer, or events that are far behind.
        """
        own = [str(note) for note in (self.degraded, self.intake.note) if note]
        guards = [*self.budgets.troubles(self.pipeline.current.rules), *self.eligibility.troubles]
        return [*own, *guards, *self.background_notes()]

    def _parts(self, stop: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
        """Everything that runs concurrently, by name."""
        parts = {name: keep(name, run, stop, self._restarted) for name, run in self.connections.items()}
        parts["depth"] = measure(self.metrics.depth, self.address, self.topology.broker_names, stop)
        if self.reload is not None:
            parts["reload"] = self.reload.watch(stop)
        if self.keeper is not None:
            parts["audit"] = self._once_migrated(maintain(self.keeper, self.on_pass, stop, self.look_every), stop)
        background = dict(self.background)
        if self.heartbeat is not None:
            background["heartbeat"] = partial(self.heartbeat.run, lambda: [*self.troubles, *self.notes])
        for name, run in background.items():
            parts[name] = self._once_migrated(_restart_after_errors(name, run, stop), stop)
        return parts

    async def _once_migrated(self, part: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
        """Runs a part that needs the tables, once they exist."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await either(self.migration.done.wait(), stopped)
            if not stop.is_set():
                await part
        finally:
            stopped.cancel()
            part.close()

    async def _wait_for_store(self, migration: asyncio.Task[None]) -> None:
        """Waits briefly for Postgres, which is nearly always available, so that it claims even the first requests."""
        done = asyncio.create_task(self.migration.done.wait())
        await asyncio.wait([migration, done], timeout=STORE_FIRST, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()

    async def _broker_is_there(self, stop: asyncio.Event) -> bool:
        """Waits for a broker; refuses one that would lose or strand messages. False if `stop` is set meanwhile."""
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
        """Each step has a time limit, so that shutdown takes at most ten seconds even if a server does not answer."""
        await self.running.finish(LAST_BATCHES)
        _, late = await asyncio.wait(tasks, timeout=GOODBYE)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=0.5)
        closing = [self.ledger.close(), self.destinations.close(), self.eligibility.close(), self.store.close()]
        if self.traces is not None:
            closing.append(self.traces.close())
        await asyncio.gather(*closing)

    def _restarted(self, part: str) -> None:
        self.metrics.reconnects.labels(part).inc()


async def _restart_after_errors(name: str, run: BackgroundTask, stop: asyncio.Event) -> None:
    """Runs a background task. Its errors do not stop retries: they are logged, and the task is restarted."""
    while not stop.is_set():
        try:
            await run(stop)
        except Exception:
            log.exception("failed unexpectedly, restarting", part=name, pause=LONGEST_PAUSE)
            await sleep_unless(stop, LONGEST_PAUSE)

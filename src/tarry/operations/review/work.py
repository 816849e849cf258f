"""Works on jobs: scans the review queue for their messages, and redrives or discards them, in batches or at a rate."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from tarry.amqp.delivery import Delivery
from tarry.errors import AuditError, ConflictError, TarryError
from tarry.operations.context import OperatorContext
from tarry.operations.review.batch import Discard, Found, Handler, Redrive, give_back
from tarry.operations.review.divert import Diverting
from tarry.operations.review.jobs import DIVERTING, Job, acceptance, get, options_of
from tarry.operations.review.message import Key, key_of, read_review_headers
from tarry.operations.review.pace import PAUSE, Pace
from tarry.operations.review.queue_scan import QueueScan, ScannedMessage, ScanResult
from tarry.operations.review.redrive import RedriveContext
from tarry.operations.review.unconfirmed import resolve
from tarry.router.destinations import Destinations
from tarry.store.database import AdvisoryLock, job_lock
from tarry.tasks import sleep_unless

log = structlog.get_logger()

MOST = 5_000
"""The largest number of unacknowledged messages that a job keeps at a time."""
MOST_BYTES = 64 << 20
LONGEST_HOLD = 60
"""Seconds of work that a job keeps unacknowledged at a time.

The broker takes back messages that are not settled within half an hour.
"""

BATCH = 200
LOOKS = 3
"""A message that this many scans, with pauses between them, did not find was taken by another consumer."""

FRAME_MAX = 131_072
JOBS_EVERY = 2.0
"""Seconds between two queries for jobs that are ready."""
JOBS_AT_ONCE = 3
"""Jobs that one process runs at the same time, so that a slow job does not delay a small one."""


async def run(context: OperatorContext, stop: asyncio.Event) -> None:
    """Runs jobs in the service until `stop` is set: those that are ready, and those that were interrupted.

    Unfinished jobs resume at the next start, in this or another process.
    """
    working: dict[str, asyncio.Task[None]] = {}
    while not stop.is_set():
        working = {job: task for job, task in working.items() if not task.done()}
        try:
            waiting = await context.store.rows("review_to_run", limit=JOBS_AT_ONCE * 2)
        except TarryError as error:
            log.warning("review jobs not read, trying again", error=str(error))
        else:
            for (job_id,) in waiting:
                if job_id not in working and len(working) < JOBS_AT_ONCE:
                    working[job_id] = asyncio.create_task(_work_on(context, job_id, stop))
        await sleep_unless(stop, JOBS_EVERY)
    if working:
        await asyncio.wait(working.values())


async def _work_on(context: OperatorContext, job_id: str, stop: asyncio.Event) -> None:
    try:
        log.info("review job started", job=job_id)
        job = await work(context, job_id, runner=context.actor, stop=stop)
    except ConflictError:
        return
    except (TarryError, OSError) as error:
        log.warning("review job interrupted, will resume", job=job_id, error=str(error))
        await sleep_unless(stop, JOBS_EVERY)
    else:
        log.info("review job finished", job=job_id, state=job.state, done=job.done, gone=job.gone, failed=job.failed)


async def work(context: OperatorContext, job_id: str, *, runner: str, stop: asyncio.Event | None = None) -> Job:
    """Works on the job until it is done or stopped. Only one worker at a time works on a job."""
    job = await get(context, job_id)
    async with context.store.lock(job_lock(job.id)) as page:
        if page is None:
            raise ConflictError(f"{job.runner or 'Another process'} is running job {job.id} now.")
        begun = await context.store.one("review_begin", job=job.id, runner=runner)
        if begun is None:
            return job
        problem: str | None = "it was interrupted"
        try:
            async with _worker(context, job, stop or asyncio.Event(), first_run=begun[0] == 1) as worker:
                await worker.run()
            problem = worker.pace.problem
        except Exception as error:
            problem = str(error) or type(error).__name__
            raise
        finally:
            with suppress(AuditError):
                await context.store.rows("review_leave", job=job.id, problem=problem)
    return await get(context, job.id)


class Worker(Protocol):
    """Works on one job until it is done or stopped."""

    pace: Pace

    async def run(self) -> None: ...


@asynccontextmanager
async def _worker(context: OperatorContext, job: Job, stop: asyncio.Event, *, first_run: bool) -> AsyncIterator[Worker]:
    pace = Pace(context, job, stop)
    beating = asyncio.create_task(pace.beat())
    try:
        if job.kind in DIVERTING:
            yield Diverting(context, job, pace, after_interruption=not first_run)
        else:
            async with _Worker.open(context, job, pace, first_run=first_run) as worker:
                yield worker
    finally:
        beating.cancel()


async def work_or_wait(context: OperatorContext, job_id: str, *, runner: str, stop: asyncio.Event) -> Job:
    """Works on the job, or waits while another worker does."""
    while not stop.is_set():
        try:
            return await work(context, job_id, runner=runner, stop=stop)
        except ConflictError:
            if (job := await get(context, job_id)).state in ("done", "stopped"):
                return job
            await sleep_unless(stop, PAUSE)
    return await get(context, job_id)


@asynccontextmanager
async def scan_lock(context: OperatorContext, stop: asyncio.Event) -> AsyncIterator[bool]:
    """Waits for the lock to scan the queue. Yields False if `stop` is set before that."""
    while not stop.is_set():
        async with context.store.lock(AdvisoryLock.REVIEW_SCAN) as page:
            if page is not None:
                yield True
                return
        await sleep_unless(stop, PAUSE / 5)
    yield False


@dataclass(slots=True)
class _Worker:
    context: OperatorContext
    job: Job
    handler: Handler
    pace: Pace
    look_for_leftovers: bool
    """An earlier run may have been killed after it recorded a message and before it acknowledged it."""
    _missed: Counter[Key] = field(default_factory=Counter)

    @classmethod
    @asynccontextmanager
    async def open(cls, context: OperatorContext, job: Job, pace: Pace, *, first_run: bool) -> AsyncIterator[_Worker]:
        destinations = Destinations(context.address, context.names, time.monotonic)
        handler: Handler = Discard(context, job)
        if job.kind == "redrive":
            redrive_context = RedriveContext(acceptance(context), context.topology.rules, FRAME_MAX)
            handler = Redrive(context, job, await options_of(context, job), redrive_context, destinations)
        try:
            yield cls(context, job, handler, pace, look_for_leftovers=not first_run)
        finally:
            await destinations.close()

    async def run(self) -> None:
        while not self.pace.halted.is_set():
            await self.context.store.rows("review_moved_on", job=self.job.id)
            items = await self._items()
            if not items:
                return
            if not await self._pass(items):
                await sleep_unless(self.pace.halted, PAUSE)
            elif len(items) > self._most_in_hand:
                await self.pace.next_batch()

    async def _items(self) -> dict[Key, str]:
        """The state of each open item, by key. Includes done items while their messages may still be in the queue."""
        rows = await self.context.store.rows("review_open_items", job=self.job.id, all=self.look_for_leftovers)
        return {(row[0], row[1]): row[2] for row in rows}

    async def _pass(self, items: dict[Key, str]) -> bool:
        """Whether the scan found any messages of the job."""
        found: set[Key] = set()

        def wanted(delivery: Delivery) -> bool:
            key = key_of(delivery)
            if key is None or key in found or key not in items:
                return False
            found.add(key)
            return True

        most = min(len(items), self._most_in_hand)
        names = self.context.names
        async with QueueScan.open(
            self.context.address, names.review_queue, wanted, most=most, most_bytes=MOST_BYTES
        ) as scan:
            async with scan_lock(self.context, self.pace.halted) as ours:
                if not ours:
                    return False
                look = await scan.look()
                await scan.settled()
            await self._act(scan, look, items)
            await scan.settled()
        if look.whole:
            self.look_for_leftovers = False
            await self._not_found({key: state for key, state in items.items() if key not in found})
        return bool(look.kept)

    @property
    def _most_in_hand(self) -> int:
        most = MOST if self.job.rate is None else max(1, min(MOST, int(self.job.rate * LONGEST_HOLD)))
        return self.pace.most(most)

    async def _act(self, scan: QueueScan, look: ScanResult, items: dict[Key, str]) -> None:
        by_id: list[Found] = [(held, read_review_headers(held.delivery)) for held in look.kept]
        by_state: dict[str, list[Found]] = {"done": [], "sending": [], "waiting": []}
        for held, headers in by_id:
            if headers.key is not None:
                by_state[items[headers.key]].append((held, headers))
        scan.ack([held for held, _ in by_state["done"]])
        await self._send(scan, by_state["waiting"])
        await self._resolve_unconfirmed(scan, by_state["sending"])

    async def _send(self, scan: QueueScan, waiting: Sequence[Found]) -> None:
        size = self.pace.batch(BATCH)
        for start in range(0, len(waiting), size):
            batch = waiting[start : start + size]
            await self.pace.wait(len(batch))
            if self.pace.halted.is_set():
                scan.put_back(held for held, _ in waiting[start:])
                return
            scan.check()
            settled = await self.handler(batch)
            scan.ack(settled.gone)
            scan.put_back(settled.back)

    async def _resolve_unconfirmed(self, scan: QueueScan, unconfirmed: Sequence[Found]) -> None:
        """Settles unconfirmed messages: they were marked for sending before, and are in the queue nevertheless."""
        if not unconfirmed:
            return
        by_id = {headers.key[0]: (held, headers) for held, headers in unconfirmed if headers.key is not None}
        verdicts = await resolve(self.context, self.job.id, list(by_id))
        await self.context.store.rows("review_sent", job=self.job.id, ids=list(verdicts.sent | verdicts.back_again))
        await give_back(self.context, self.job, [(by_id[one][1], None) for one in verdicts.unsent])
        await self._close(
            verdicts.unknown, "unconfirmed", "interrupted while it was sent; whether it arrived is not known"
        )
        gone: list[ScannedMessage] = [by_id[one][0] for one in verdicts.sent]
        scan.ack(gone)
        scan.put_back(held for held, _ in unconfirmed if held not in gone)

    async def _not_found(self, missed: dict[Key, str]) -> None:
        """Handles items whose messages are not in the queue.

        A waiting item is not closed at once, because another consumer may have its message and return it.
        """
        self._missed.update(key for key, state in missed.items() if state == "waiting")
        gone = [key[0] for key, times in self._missed.items() if times >= LOOKS and missed.get(key) == "waiting"]
        await self._close(gone, "gone", "not in the queue: another consumer has taken it")
        unconfirmed = [key[0] for key, state in missed.items() if state == "sending"]
        if unconfirmed:
            verdicts = await resolve(self.context, self.job.id, unconfirmed)
            await self.context.store.rows("review_sent", job=self.job.id, ids=list(verdicts.sent | verdicts.back_again))
            lost = verdicts.unsent | verdicts.unknown
            await self._close(lost, "unconfirmed", "interrupted while it was sent, and no longer in the queue")

    async def _close(self, ids: Sequence[str] | set[str], state: str, problem: str) -> None:
        if ids:
            await self.context.store.rows(
                "review_close_items", job=self.job.id, ids=list(ids), state=state, problem=problem
            )

"""The tap: reads returned and cancelled retries, reports and spooled records, and writes them to the store."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, TypeVar

import structlog

from tarry.amqp.consumer import Consumer
from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, Field, pick, walk_array
from tarry.contract import headers as h
from tarry.contract.header_reader import HeaderReader, RefusalError
from tarry.contract.layover import is_on_layover
from tarry.contract.retry_headers import read_retry_headers
from tarry.contract.trace import TraceContext, trace_of
from tarry.core.names import Names
from tarry.errors import AuditError, AuditUnavailableError
from tarry.router.batches import BatchResult, GiveUp, handle_batch, isolate_poison
from tarry.router.ledger import LEG, spooled_leg, spooled_record
from tarry.store.claims import Store, reported
from tarry.store.rows import RecordedCancel, RecordedReturn, Return, SkippedWhenDue, Success
from tarry.tasks import now_and_then, sleep_unless

log = structlog.get_logger()

BEHIND_MS = 2_000
"""A copy read this late may have waited in the tap's queue; the broker's time of its last step is then closer."""

_FIRST = "x-first-death-queue"
_OF_TRACE = (h.TRACEPARENT, h.TRACESTATE, h.SCHEDULED)
_READ = frozenset(
    name.encode() for name in (h.ID, h.ROUND, h.DUE, h.COUNT, h.QUEUE, h.DEATHS, h.LAYOVER, _FIRST, *_OF_TRACE)
)
_SCHEDULED = h.SCHEDULED.encode()
_TIME = b"time"
_seconds = struct.Struct(">Q")


def read_sighting(
    delivery: Delivery, arrived_ms: Callable[[int], int], names: Names, *, returns: bool = True
) -> Return | None:
    """Which round of which retry a message is, and when it passed.

    None if the message does not have tarry's headers: another program published it, and it is ignored. With `returns`
    None also for one that has another leg to go: without its keys, or without the layover queue, it can get here, and
    will be in the unroutable queue next.
    """
    try:
        fields = pick(delivery.properties.headers or b"", _READ)
        if returns and is_on_layover(fields):
            return None
        own = read_retry_headers(fields)
        own.check(h.ID, h.ROUND, h.DUE, h.COUNT, h.QUEUE)
        tier = HeaderReader(fields).text(_FIRST) or ""
        retry_id, round_, due = own.id_text, own.round, own.due_ms
        if retry_id is None or round_ is None or due is None:
            raise RefusalError("it has none of tarry's headers")  # noqa: TRY301 - logged in one place
        own.strict_id()
        deaths = fields.get(h.DEATHS.encode())
        at_ms = passed_ms(arrived_ms(delivery.tag), due, deaths)
    except (RefusalError, BadTableError) as error:
        log.warning("not a return", error=str(error))
        return None
    found = names.parse(tier)
    known_tier = tier
    if found is None or found.kind != "tier":
        known_tier = names.whole_ladder(found.lane if found is not None and found.kind == "ladder" else None)
    trace, scheduled_ms = _traced_wait(fields, at_ms)
    return Return(
        retry_id,
        round_,
        own.queue or "",
        own.retry_count or 0,
        due,
        at_ms,
        delivery.redelivered,
        known_tier,
        held=deaths is not None and _was_held(deaths.value, names),
        trace=trace,
        scheduled_ms=scheduled_ms,
    )


def _traced_wait(fields: Mapping[bytes, Field], at_ms: int) -> tuple[TraceContext | None, int]:
    """The sampled trace of a message and when its wait began. Anybody can forge these headers: in doubt, None."""
    scheduled = fields.get(_SCHEDULED)
    if scheduled is None:
        return None, 0
    trace, since = trace_of(fields), scheduled.integer()
    if trace is None or not trace.sampled or since is None or not 0 < since <= at_ms:
        return None, 0
    return trace, since


def _was_held(deaths: bytes, names: Names) -> bool:
    """Whether x-death names a held queue, of a destination or of a gate."""
    return any(names.stem(family).encode() in deaths for family in ("held", "gate"))


def passed_ms(arrived_ms: int, due_ms: int, deaths: Field | None) -> int:
    """When it passed. The broker's time has whole seconds: the end of that second is used, so that none looks early."""
    if arrived_ms - due_ms <= BEHIND_MS:
        return arrived_ms
    last = last_death_s(deaths)
    return arrived_ms if last is None else min(arrived_ms, max(due_ms, last * 1_000 + 999))


def last_death_s(deaths: Field | None) -> int | None:
    """The newest time of all entries: old brokers do not keep their order."""
    if deaths is None or deaths.kind != b"A":
        return None
    times = [
        int(_seconds.unpack(found.value)[0])
        for item in walk_array(deaths.value)
        if item.kind == b"F" and (found := pick(item.value, {_TIME}).get(_TIME)) is not None and found.kind == b"T"
    ]
    return max(times, default=None)


T = TypeVar("T")
R = TypeVar("R")

Unwritten = list[tuple[Delivery, str]]
"""Deliveries that cannot be written, with the reason. They go to review, and nothing waits for them."""

PATIENCE = 1.0
"""Seconds between attempts while Postgres is unavailable."""


@dataclass(slots=True)
class StoreWriter:
    """Writes rows to the store, each with the delivery it was read from."""

    trouble: AuditUnavailableError | None = None
    """Why nothing can be written now, or None."""

    async def write(
        self,
        write: Callable[[Sequence[T]], Awaitable[R]],
        rows: Sequence[tuple[Delivery, T]],
        tell: Callable[[R], None] = lambda _: None,
    ) -> Unwritten:
        """Isolates rows that Postgres refuses, and returns their deliveries with the reason. `tell` gets the answer of
        the store for the others.
        """

        async def store(part: Sequence[tuple[Delivery, T]]) -> Unwritten:
            tell(await self._write_until_stored(write, [row for _, row in part]))
            return []

        async def refuse(row: tuple[Delivery, T], error: Exception) -> Unwritten:
            return [(row[0], str(error))]

        parts = await isolate_poison(rows, store, refuse, AuditError) if rows else []
        return [unwritten for part in parts for unwritten in part]

    async def _write_until_stored(self, write: Callable[[Sequence[T]], Awaitable[R]], rows: Sequence[T]) -> R:
        """Waits while Postgres is unavailable; raises if it refuses the rows."""
        while True:
            try:
                answer = await write(rows)
            except AuditUnavailableError as error:
                self.trouble = error
                await asyncio.sleep(PATIENCE)
            else:
                self.trouble = None
                return answer


@dataclass(slots=True)
class Tap:
    """Writes `retry.audit` to the store, one batch after the other."""

    store: Store
    names: Names
    on_returns: Callable[[Sequence[RecordedReturn]], None] = field(default=lambda _: None)
    on_successes: Callable[[Sequence[Success]], None] = field(default=lambda _: None)
    on_skips: Callable[[Sequence[SkippedWhenDue]], None] = field(default=lambda _: None)
    _writer: StoreWriter = field(default_factory=StoreWriter)

    @property
    def trouble(self) -> AuditUnavailableError | None:
        """Why nothing can be written now, or None."""
        return self._writer.trouble

    async def handle(self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]) -> Unwritten:
        """Returns once the whole batch is in the store; only then may it be acknowledged."""
        write = self._writer.write
        spool = [one for one in deliveries if one.exchange == self.names.spool]
        records = [one for one in spool if one.properties.type != LEG]
        reports = [one for one in deliveries if one.exchange == self.names.reports]
        copies = [one for one in deliveries if one.exchange not in (self.names.spool, self.names.reports)]
        spooled, unwritten = _spooled(records, spooled_record)
        # A batch may contain two rounds of one retry, which one statement cannot write: oldest first.
        for round_ in sorted({record.round for _, record in spooled}):
            unwritten += await write(self.store.record_late, [one for one in spooled if one[1].round == round_])
        legs, not_read = _spooled([one for one in spool if one.properties.type == LEG], spooled_leg)
        unwritten += [*not_read, *await write(self.store.record_legs, legs)]
        unwritten += await write(self.store.returned, _sighted(copies, arrived_ms, self.names), self.on_returns)
        read = reported(reports)
        unwritten += await write(self.store.started, [(one, start) for one, report in read for start in report.starts])
        ends = [(one, end) for one, report in read for end in report.outcomes]
        unwritten += await write(self.store.succeeded, ends, self.on_successes)
        skips = [(one, skip) for one, report in read for skip in report.skips]
        unwritten += await write(self.store.skipped, skips, self.on_skips)
        return unwritten


@dataclass(slots=True)
class CancelledTap:
    """Writes `retry.cancelled` to the store, one batch after the other."""

    store: Store
    names: Names
    on_cancelled: Callable[[Sequence[RecordedCancel]], None] = field(default=lambda _: None)
    _writer: StoreWriter = field(default_factory=StoreWriter)

    @property
    def trouble(self) -> AuditUnavailableError | None:
        return self._writer.trouble

    async def handle(self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]) -> Unwritten:
        """As `Tap.handle`. A message that was diverted twice is cancelled once."""
        seen = _sighted(deliveries, arrived_ms, self.names, returns=False)
        return await self._writer.write(self.store.cancelled, seen, self.on_cancelled)


def _sighted(
    deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int], names: Names, *, returns: bool = True
) -> list[tuple[Delivery, Return]]:
    found = ((one, read_sighting(one, arrived_ms, names, returns=returns)) for one in deliveries)
    return [(one, sighting) for one, sighting in found if sighting is not None]


def _spooled(
    deliveries: Sequence[Delivery], read: Callable[[Delivery], T]
) -> tuple[list[tuple[Delivery, T]], Unwritten]:
    records: list[tuple[Delivery, T]] = []
    unwritten: Unwritten = []
    for one in deliveries:
        try:
            records.append((one, read(one)))
        except (ValueError, TypeError, KeyError):
            log.warning("not a spooled record", exc_info=True)
            unwritten.append((one, "not a spooled record: its body is not what a router writes"))
    return records, unwritten


REQUEUED_AFTER = 10.0
"""Seconds after which a return has either reached its queue or was noted as unroutable: longer than the handler of
unroutable messages rests."""

CHECK_EVERY = 2.0
LATELY = timedelta(minutes=5)


@dataclass(slots=True)
class RequeueCheck:
    """Finds out which returns have reached their queue. The tap sees a message just before the broker routes it to its
    queue; whether there was one, the unroutable queue tells.
    """

    store: Store
    on_requeued: Callable[[Sequence[Return]], None]
    after: float = REQUEUED_AFTER
    _waiting: dict[tuple[str, int], tuple[float, Return]] = field(default_factory=dict)
    """By retry id and round, the oldest first: when it was seen last."""

    def add(self, found: Sequence[RecordedReturn]) -> None:
        now = asyncio.get_running_loop().time()
        for seen in (one.seen for one in found):
            self._waiting.pop((seen.retry_id, seen.round), None)
            self._waiting[seen.retry_id, seen.round] = now, seen

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set; then the rest is taken to have reached its queue."""
        await now_and_then("count of requeued retries", self.look, stop, CHECK_EVERY)
        self.on_requeued([seen for _, seen in self._waiting.values()])

    async def look(self) -> None:
        """Decides about the returns that were seen long enough ago."""
        until = asyncio.get_running_loop().time() - self.after
        settled = [key for key, (at, _) in self._waiting.items() if at <= until]
        if not settled:
            return
        elsewhere = await self.store.not_requeued(LATELY)
        found = [(key, self._waiting.pop(key)[1]) for key in settled if key in self._waiting]
        self.on_requeued([seen for key, seen in found if key not in elsewhere])


BATCH = 500
LINGER = 0.1
"""Seconds that a batch waits for more: nothing waits for the audit, and a few large batches cost less than many."""

REST = 4.0
"""Seconds that the tap pauses when a burst begins, so that messages that come due together are delivered first."""


@dataclass(slots=True)
class BurstBackoff:
    """Whether to pause: once, until the tap has caught up. Under a lasting load the tap must keep pace."""

    rested: bool = False

    def rest(self, batch: int) -> float:
        """Seconds to pause after a batch of this size. A full batch is the beginning of a burst."""
        begins = batch >= BATCH and not self.rested
        self.rested = batch >= BATCH
        return REST if begins else 0.0


class TapWriter(Protocol):
    """Writes one batch after the other; `handle` returns once the batch is in the store."""

    @property
    def trouble(self) -> AuditUnavailableError | None: ...
    async def handle(self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]) -> Unwritten: ...


@dataclass(frozen=True, slots=True)
class TapQueue:
    """A queue that the tap reads, and the writer of its messages."""

    queue: str
    purpose: str
    writer: TapWriter
    backoff: BurstBackoff = field(default_factory=BurstBackoff)

    @property
    def is_behind(self) -> bool:
        """Whether more of it waits: the last batch was full, or cannot be written."""
        return self.backoff.rested or self.writer.trouble is not None

    def handler(self, consumer: Consumer, give_up: GiveUp) -> Callable[[list[Delivery]], Awaitable[BatchResult]]:
        """Deliveries that cannot be written go to review; nothing waits for them."""
        self.backoff.rested = False

        async def write(batch: Sequence[Delivery]) -> BatchResult:
            stays: list[int] = []
            for delivery, reason in await self.writer.handle(batch, consumer.arrived_ms):
                log.error("cannot be written to the store, sent to review", queue=self.queue, reason=reason)
                stays += (await give_up(delivery, f"in {self.queue}: {reason}")).requeued
            return BatchResult([one.tag for one in batch if one.tag not in stays], stays)

        async def handle(batch: list[Delivery]) -> BatchResult:
            settled = BatchResult.of(await handle_batch(batch, write, give_up))
            await sleep_unless(consumer.finishing, self.backoff.rest(len(batch)))
            return settled

        return handle


@dataclass(frozen=True, slots=True)
class TapListeners:
    """Called with what the taps have recorded for the first time."""

    on_returns: Callable[[Sequence[RecordedReturn]], None]
    on_successes: Callable[[Sequence[Success]], None]
    on_skips: Callable[[Sequence[SkippedWhenDue]], None]
    on_cancelled: Callable[[Sequence[RecordedCancel]], None]


def make_taps(store: Store, names: Names, to: TapListeners) -> tuple[TapQueue, ...]:
    """The queues that the tap reads."""
    return (
        TapQueue(names.audit, "tap", Tap(store, names, to.on_returns, to.on_successes, to.on_skips)),
        TapQueue(names.cancelled, "cancelled", CancelledTap(store, names, to.on_cancelled)),
    )

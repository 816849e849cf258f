"""The periodic audit pass (`AuditPass`, run by `maintain`), and `stalls`, which detects stalled queues and is pure.

A queue is stalled when its dead-letter worker holds expired messages that the next queue does not accept. The worker
has 32 slots and retries only every three minutes. A stalled relay of one destination affects that destination only; a
stalled tier, or the relay that unattached destinations share, affects all destinations.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import nsmallest

import structlog

from tarry.amqp.management import Management
from tarry.analytics.rollups import (
    StatisticsProgress,
    StatisticsRules,
    count_new_steps,
    prune_statistics,
    read_progress,
)
from tarry.attach.listing import Attachment, attachments
from tarry.attach.snapshot import read_snapshot
from tarry.audit.anomalies import AnomalyNow, AnomalyWatch, read_anomalies
from tarry.audit.depths import Depths
from tarry.audit.status import SILENT_AFTER, Counts, read_counts
from tarry.audit.verdict import Open
from tarry.audit.verify import Auditor, AuditReading, AuditRules
from tarry.core.names import Destination, Names
from tarry.errors import BrokerError, TarryError
from tarry.store.claims import GIVE_BACK, LEASE
from tarry.store.database import AdvisoryLock, PostgresSession, Row, SessionSettings, open_session
from tarry.store.retention import SLICE, in_slices, prune
from tarry.store.rows import GRACE, StuckLimits, Success
from tarry.tasks import in_thread, sleep_unless

MOST_NAMED = 20
"""Destinations behind one stalled queue, and log lines of one kind in each pass; the others are counted."""

Flow = Mapping[tuple[str, str], int]
"""(tier, destination queue) to a number of messages."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A stalled queue, and the destinations that may cause it."""

    queue: str
    messages: int
    destinations: tuple[str, ...]

    def __str__(self) -> str:
        behind = ", ".join(self.destinations) or "an unknown destination"
        return f"{self.queue} is stalled with {self.messages} messages: {behind} does not accept them"


def stalls(before: Depths, now: Depths, between: Flow, recent: Flow, overdue: Flow) -> list[Stall]:
    """Queues whose dead-letter worker held messages at both readings, while nothing passed `between` them. `recent`
    goes back further, to name possible destinations: the tap also sees messages that their destination then refuses.
    """
    both = {name: min(before[name].moving, depth.moving) for name, depth in {**now.tiers, **now.relays}.items()}
    passed, owed, gone = (DestinationsByQueue.of(flow, now) for flow in (between, overdue, recent))
    return [
        Stall(name, count, tuple(_behind(name, now.names, owed, gone)))
        for name, count in sorted(both.items())
        if count and not passed.of_queue(name)
    ]


@dataclass(frozen=True, slots=True)
class DestinationsByQueue:
    """The destinations of the messages that pass each queue. Indexed: there may be thousands of stalled relays, and
    messages to thousands of destinations.
    """

    names: Names
    queues: Mapping[str, set[str]]
    by_lane: Mapping[str | None, set[str]]
    """Any message may pass the ladder, except that of another lane."""

    @classmethod
    def of(cls, flow: Flow, depths: Depths) -> DestinationsByQueue:
        names, queues, by_lane = depths.names, defaultdict[str, set[str]](set), defaultdict[str | None, set[str]](set)
        for tier, destination in flow:
            queues[tier].add(destination)
            by_lane[names.lane_of(tier)].add(destination)
        for lane, destinations in by_lane.items():
            for destination in destinations:
                own = names.relay_queue(Destination("queue", destination), lane)
                queues[own if own in depths.queues else names.relay_of(lane)].add(destination)
        return cls(names, queues, by_lane)

    def of_queue(self, name: str) -> set[str]:
        found = self.names.parse(name)
        if found is None or found.kind != "ladder":
            return self.queues.get(name, set())
        return set().union(*self.by_lane.values()) if found.lane is None else self.by_lane.get(found.lane, set())


def _behind(queue: str, names: Names, owed: DestinationsByQueue, gone: DestinationsByQueue) -> list[str]:
    """The destination in the relay's name; otherwise those with overdue retries, or else those with recent returns."""
    if (label := names.destination_label(queue)) is not None:
        return [label]
    return nsmallest(MOST_NAMED, owed.of_queue(queue) or gone.of_queue(queue))


log = structlog.get_logger()

PRUNE_EVERY = 3_600.0
RECENT = timedelta(hours=1)
STALE_CLAIM = timedelta(seconds=30)
"""A claim older than this is given back, whichever router made it: that router was disconnected or killed. If it is
still working on the claim, its record creates the round again."""
FORGOTTEN = timedelta(days=1)
"""A router that stopped reporting is named for this long."""
COUNTING = 10.0
"""Seconds for which one pass counts statistics, and one batch more; the rest is left to the next pass."""
BACKLOG = 1_000
"""With more requests than this waiting, no success is presumed: the failure may be among those requests."""


@dataclass(frozen=True, slots=True)
class AuditPassRules:
    """Settings of the audit pass. None switches a part off."""

    quiet: timedelta | None = timedelta(minutes=15)
    """A return this long ago without a new failure counts as success. Must exceed any consumer's processing time."""
    grace: timedelta = GRACE
    keep: timedelta | None = timedelta(days=30)
    """How long history and finished retries are kept."""
    keep_payloads: timedelta | None = None
    """How long the payloads of finished retries are kept, if shorter than `keep`."""
    statistics: StatisticsRules = field(default_factory=StatisticsRules)
    lead_for: timedelta = timedelta(seconds=90)
    """Another router takes over if the leader has made no pass for this long; longer than the interval of passes."""


@dataclass(frozen=True, slots=True)
class AuditFindings:
    """The results of one pass, for metrics and logs."""

    counts: Counts
    missing: int
    """Open retries that the broker does not have, at two readings in a row; includes those that cannot be named yet."""
    late: int
    """Overdue retries that are still on the broker."""
    oldest_overdue_s: float
    stalled: tuple[Stall, ...]
    open_by_tier: Mapping[str, int]
    depth_by_tier: Mapping[str, int]
    presumed: tuple[Success, ...] = ()
    noted: int = 0
    """Rounds that this pass was the first to note as overdue."""
    stuck: int = 0
    """Attempts that have been running for longer than their limit."""
    stuck_recovered: Mapping[str, int] = field(default_factory=dict)
    """Stuck attempts recovered since the last pass that counted them: by where they were sent."""
    missing_rounds: tuple[tuple[str, int], ...] = ()
    """Retry ids and rounds that were named as missing at two readings in a row."""
    attachments: tuple[Attachment, ...] | None = None
    """All attachments with their states; None if the broker could not be read."""
    anomalies: tuple[AnomalyNow, ...] = ()
    """Failure rates that are far above the usual ones."""
    statistics: StatisticsProgress | None = None
    """How far statistics have been counted; None if that is not known, or if counting has not begun."""


@dataclass(slots=True)
class AuditPass:
    """Runs audit passes. Each opens a connection of its own, and waits for Postgres and the broker without blocking the
    event loop.
    """

    dsn: str
    names: Names
    management: Management
    actor: str
    upkeep: AuditPassRules = AuditPassRules()
    stuck_limits: Callable[[], StuckLimits] = StuckLimits
    _before: AuditReading | None = None
    _looked_at: float = field(default_factory=time.monotonic)
    _pruned_at: float | None = None
    _statistics_pruned_at: float | None = None
    _anomalies: AnomalyWatch = field(init=False)

    def __post_init__(self) -> None:
        self._anomalies = AnomalyWatch(self.actor)

    async def __call__(self) -> AuditFindings:
        """Run one pass. Every process reads; only the leader writes, and only if it has the lock. Statistics are last,
        under a lock of their own: they may take longer, and nothing depends on them.
        """
        async with open_session(self.dsn) as session:
            auditor = Auditor(session, self.management, self.names, AuditRules(self.upkeep.grace, patience=0.0))
            reading = await auditor.read()
            findings = await self._findings(session, reading)
            async with session.lock(AdvisoryLock.AUDIT_PASS) as held:
                leads = held and await self._leads(session)
                if leads:
                    findings = await self._write(session, reading, findings)
            if leads:
                await self._count_statistics(session)
                findings = replace(findings, anomalies=tuple(await read_anomalies(session)))
            return replace(findings, statistics=await self._statistics(session))

    async def _count_statistics(self, session: PostgresSession) -> None:
        """Counts, and looks for anomalies on the given session: its commits survive a crash of Postgres. A failure
        must not stop the rest of the pass; the next pass goes on from the same place.
        """
        try:
            async with (
                open_session(self.dsn, SessionSettings.STATISTICS, name="tarry statistics") as counting,
                counting.lock(AdvisoryLock.STATISTICS) as held,
            ):
                if held:
                    await count_new_steps(counting, seconds=COUNTING)
                    await self._prune_statistics(counting)
                    await self._anomalies.look(session)
        except TarryError as error:
            log.warning("statistics were not counted", reason=str(error))
        except Exception:
            log.exception("statistics were not counted")

    async def _prune_statistics(self, session: PostgresSession) -> None:
        now = time.monotonic()
        if self._statistics_pruned_at is None or now - self._statistics_pruned_at >= PRUNE_EVERY:
            self._statistics_pruned_at = now
            await prune_statistics(session, self.upkeep.statistics)

    async def _statistics(self, session: PostgresSession) -> StatisticsProgress | None:
        try:
            return await read_progress(session)
        except TarryError as error:
            log.warning("how far statistics are counted is not known", reason=str(error))
            return None

    async def _leads(self, session: PostgresSession) -> bool:
        """Whether this router is the leader. It stays the leader for as long as it reports and makes passes."""
        row = await session.one("is_maintained", id=self.actor, lately=self.upkeep.lead_for, silent_after=SILENT_AFTER)
        if row and row[0]:
            return False
        await session.change("maintained", id=self.actor)
        return True

    async def _findings(self, session: PostgresSession, reading: AuditReading) -> AuditFindings:
        before, self._before = self._before, reading
        now = reading.snapshot.now
        return AuditFindings(
            counts=await read_counts(session, self.upkeep.grace),
            missing=min(before.verdict.lost, reading.verdict.lost) if before else 0,
            missing_rounds=tuple(sorted(_named(before) & _named(reading))) if before else (),
            late=len(reading.verdict.late),
            oldest_overdue_s=(now - min(map(_overdue_since, reading.snapshot.overdue), default=now)).total_seconds(),
            stalled=tuple(await self._stalls(session, before, reading)),
            open_by_tier={row[0]: row[1] for row in await session.rows("open_by_tier") if row[0]},
            depth_by_tier={name: depth.messages for name, depth in reading.depths.tiers.items()},
            stuck=await self._stuck(session),
            attachments=await self._attachments(),
            anomalies=tuple(await read_anomalies(session)),
        )

    async def _stuck(self, session: PostgresSession) -> int:
        row = await session.one("count_stuck", **self.stuck_limits().parameters())
        return int(row[0]) if row else 0

    async def _attachments(self) -> tuple[Attachment, ...] | None:
        """A failure to read the attachments must not stop the rest of the pass."""
        try:
            return await in_thread(
                lambda: tuple(attachments(read_snapshot(self.management, self.names))), "audit attachments"
            )
        except BrokerError as error:
            log.warning("attachments were not checked", reason=str(error))
            return None

    async def _stalls(
        self, session: PostgresSession, before: AuditReading | None, reading: AuditReading
    ) -> list[Stall]:
        since, self._looked_at = self._looked_at, time.monotonic()
        if before is None:
            return []
        lately = timedelta(seconds=self._looked_at - since)
        return stalls(
            before.depths,
            reading.depths,
            _flow(await session.rows("returned_lately", lately=lately)),
            _flow(await session.rows("returned_lately", lately=RECENT)),
            _flow(await session.rows("overdue_by_tier", grace=self.upkeep.grace)),
        )

    async def _write(self, session: PostgresSession, reading: AuditReading, findings: AuditFindings) -> AuditFindings:
        await session.rows("add_partitions")
        given_back = await session.change("give_back", **GIVE_BACK | {"older_than": STALE_CLAIM, "actor": self.actor})
        given_back += await session.change("close_superseded", older_than=LEASE, actor=self.actor)
        if given_back:
            log.info("stale claims were given back", number=given_back)
        noted = await session.change("note_overdue", grace=self.upkeep.grace, actor=self.actor)
        await self._note_missing(session, findings.missing_rounds)
        backlog = sum(reading.depths[queue].messages for queue in (self.names.scheduled, self.names.audit))
        presumed = await self._presume(session) if backlog <= BACKLOG else []
        await session.change("prune_routers", older_than=FORGOTTEN)
        await in_slices(session, "forget_starts")
        recovered = Counter(row[0] for row in await session.rows("count_recovered"))
        await self._prune(session)
        return replace(findings, noted=noted, presumed=tuple(presumed), stuck_recovered=recovered)

    async def _note_missing(self, session: PostgresSession, found: Sequence[tuple[str, int]]) -> None:
        if found:
            ids, rounds = [one for one, _ in found], [round_ for _, round_ in found]
            await session.change("note_missing", ids=ids, rounds=rounds, actor=self.actor)

    async def _presume(self, session: PostgresSession) -> list[Success]:
        found: list[Success] = []
        while self.upkeep.quiet is not None:
            rows = await session.rows("presume_success", quiet=self.upkeep.quiet, limit=SLICE)
            found += [Success(*row)._replace(presumed=True) for row in rows]
            if len(rows) < SLICE:
                break
        return found

    async def _prune(self, session: PostgresSession) -> None:
        now = time.monotonic()
        if self.upkeep.keep is None or (self._pruned_at is not None and now - self._pruned_at < PRUNE_EVERY):
            return
        self._pruned_at = now
        pruned = await prune(session, self.upkeep.keep, self.upkeep.keep_payloads)
        if pruned.partitions or pruned.retries or pruned.payloads:
            log.info("old history dropped", days=len(pruned.partitions), retries=pruned.retries)


def _overdue_since(row: Open) -> datetime:
    return row.expected if row.on_layover and row.expected is not None else row.due


def _named(reading: AuditReading) -> set[tuple[str, int]]:
    return {(one.retry.retry_id, one.retry.round) for one in reading.verdict.missing}


def _flow(rows: Sequence[Row]) -> Flow:
    return {(tier or "", queue): count for tier, queue, count in rows}


async def maintain(
    audit_pass: Callable[[], Awaitable[AuditFindings]],
    tell: Callable[[AuditFindings | None], None],
    stop: asyncio.Event,
    every: float,
) -> None:
    """Runs audit passes at intervals until `stop` is set; their findings go into the log, and to `tell`.

    `tell` gets None if the pass could not be made: the numbers are unknown, not zero.
    """
    while True:
        try:
            findings = await audit_pass()
        except TarryError as error:
            log.warning("audit pass failed", reason=str(error))
            tell(None)
        else:
            _log(findings)
            tell(findings)
        if await sleep_unless(stop, every):
            return


def _log(findings: AuditFindings) -> None:
    if findings.missing:
        log.error("retries missing", number=findings.missing, do="run `tarry audit verify`")
    if findings.late:
        log.warning("retries late", number=findings.late, oldest_s=round(findings.oldest_overdue_s))
    if findings.stuck:
        log.warning("attempts stuck", number=findings.stuck, do="run `tarry stuck`")
    for stall in findings.stalled[:MOST_NAMED]:
        log.warning("queue stalled", queue=stall.queue, messages=stall.messages, behind=list(stall.destinations))
    if (more := len(findings.stalled) - MOST_NAMED) > 0:
        log.warning("more queues stalled", number=more, do="see tarry_stalled")
    ineffective = [one for one in findings.attachments or () if one.state.may_lose_rejects]
    for found in ineffective[:MOST_NAMED]:
        log.error(
            "attachment is not in effect", queue=found.destination.name, state=str(found.state), detail=found.detail
        )
    if (more := len(ineffective) - MOST_NAMED) > 0:
        log.error("more attachments are not in effect", number=more, do="run `tarry attach --list`")

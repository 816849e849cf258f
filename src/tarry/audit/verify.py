"""`tarry audit verify`: reads the store and the broker, and compares them until the result is settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tarry.amqp.management import STATISTICS, Management
from tarry.amqp.url import Address
from tarry.audit.depths import Depths, read_depths, ready_counts
from tarry.audit.status import read_balance
from tarry.audit.verdict import (
    AuditVerdict,
    Open,
    Snapshot,
    can_hold,
    deciding_queues,
    empty_tiers,
    judge,
    short_queues,
    unsettled_queues,
)
from tarry.core.durations import parse_duration
from tarry.core.names import Names, holder_of
from tarry.errors import BrokerError, BrokerUnreachableError
from tarry.store.claims import LEASE
from tarry.store.database import PostgresSession
from tarry.store.rows import GRACE, Balance
from tarry.tasks import in_thread

SETTLE = timedelta(seconds=2)
"""A message this close to the beginning or the end of its wait counts as in flight, and is not judged."""

OFFERED_AGAIN = timedelta(seconds=180)
"""How long the broker waits before it offers a message again that a queue did not confirm, or that had no queue: its
setting `dead_letter_worker_publisher_confirm_timeout`, which the management API does not expose."""

PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class AuditRules:
    """Time limits of the audit."""

    grace: timedelta = GRACE
    settle: timedelta = SETTLE
    patience: float = STATISTICS
    """Seconds to repeat the reading while something is missing or a depth is unknown."""
    offered_again: timedelta = OFFERED_AGAIN


@dataclass(frozen=True, slots=True)
class AuditReading:
    """The store and the broker at one moment, and the verdict."""

    snapshot: Snapshot
    depths: Depths
    verdict: AuditVerdict

    @property
    def in_tiers(self) -> int:
        return sum(depth.messages for depth in self.depths.tiers.values())


@dataclass(frozen=True, slots=True)
class Auditor:
    """Reads the store and the broker, and judges them by the rules.

    Calls to the broker run in threads, and so does the work on what can be a very large number of rows.
    """

    session: PostgresSession
    management: Management
    names: Names
    rules: AuditRules = AuditRules()

    @property
    def address(self) -> Address:
        return self.management.address

    async def settled(self) -> AuditReading:
        """The first reading that proves that nothing is missing, or the last one if none does."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            reading = await self.read(trust_statistics=waited >= STATISTICS)
            if not (reading.verdict.lost or reading.verdict.unjudged) or waited > self.rules.patience:
                return reading
            await asyncio.sleep(PAUSE)

    async def read(self, *, trust_statistics: bool = True) -> AuditReading:
        """Take one reading. If the statistics are newer than the start of the audit, or if the caller takes another
        reading later, only queues that are short by the statistics are asked directly. Otherwise every queue that can
        change the verdict is asked.
        """
        depths = await in_thread(lambda: read_depths(self.management, self.names), "audit depths")
        snapshot = await self._snapshot(depths)
        choose = short_queues if trust_statistics else deciding_queues
        ready = await in_thread(lambda: self.ready(choose(snapshot, depths)), "audit ready counts")
        fresh = depths.with_ready(ready)
        rows = await self._rows_of(empty_tiers(snapshot, fresh), fresh)
        verdict = await in_thread(lambda: judge(snapshot, fresh, rows, self.rules.grace), "audit verdict")
        if not trust_statistics:
            unjudged = sorted({*verdict.unjudged, *unsettled_queues(snapshot, fresh, ready)})
            verdict = replace(verdict, unjudged=unjudged)
        return AuditReading(snapshot, fresh, verdict)

    async def balance(self, *, since: datetime | None = None, queue: str | None = None) -> Balance:
        return await read_balance(self.session, self.rules.grace, since=since, queue=queue)

    def ready(self, queues: Collection[str]) -> dict[str, int]:
        """The current number of ready messages in these queues; none for a user without the permission to ask, who has
        only the statistics.
        """
        try:
            return ready_counts(self.address, queues) if queues else {}
        except BrokerUnreachableError:
            raise
        except BrokerError:
            return {}

    async def _snapshot(self, depths: Depths) -> Snapshot:
        rules, rows = self.rules, self.session.rows
        now = (await rows("clock"))[0][0]
        overdue, gates = await self._overdue(depths)
        tiers = sorted({row.tier for row in overdue if row.tier})
        in_tiers: dict[str, int] = dict(await rows("in_first_wait", settle=rules.settle, **await self._tiers()))
        return Snapshot(
            now=now,
            waiting=in_tiers | await self._in_hold(depths),
            overdue=overdue,
            stale_claims=await self._open_rows("stale_claims", lease=LEASE + rules.grace),
            not_overdue=dict(await rows("not_overdue_by_tier", tiers=tiers, grace=rules.grace)) if tiers else {},
            passed=dict(await rows("passed", tiers=tiers, ago=timedelta())) if tiers else {},
            passed_long_ago=dict(await rows("passed", tiers=tiers, ago=rules.offered_again)) if tiers else {},
            gates=gates,
            tap_seen=(await rows("tap_seen"))[0][0],
        )

    async def _overdue(self, depths: Depths) -> tuple[list[Open], dict[str, list[str]]]:
        """The overdue retries; and for each of them, by its id, the held queues of gates, and the check queues, that it
        can be in.
        """
        queues = {label: queue for queue in depths.gates if (label := self.names.destination_label(queue)) is not None}
        checks = {queue: found.policy for queue in depths.checks if (found := self.names.parse(queue)) is not None}
        rows = await self.session.rows("overdue_rows", grace=self.rules.grace, gates=list(queues))

        def read() -> tuple[list[Open], dict[str, list[str]]]:
            overdue, gates = [], {}
            for *columns, carried, policy in rows:
                row = Open(*columns)
                overdue.append(row)
                gates[row.retry_id] = [queue for label, queue in queues.items() if can_hold(label, carried, policy)]
                gates[row.retry_id] += [queue for queue, name in checks.items() if policy in (None, name)]
            return overdue, gates

        return await in_thread(read, "audit rows")

    async def _in_hold(self, depths: Depths) -> dict[str, int]:
        """How many messages must be in each held queue. The tap has yet to read some that have returned. Those in check
        queues may be held once they have been decided about, so any held queue can lack them; and those whose report
        that they are skipped the tap has yet to read.
        """
        unread, checks = depths[self.names.audit].messages, depths.checks.values()
        checked = sum(depth.messages for depth in checks) + (unread if checks else 0)
        found = await self.session.rows("in_held_queues", settle=self.rules.settle, unread=unread)
        return {self.names.held_queue(holder_of(kind, name)): max(0, count - checked) for kind, name, count in found}

    async def _rows_of(self, queues: list[str], depths: Depths) -> list[Open]:
        """The retries that must be in these queues; if all tiers are empty, those anywhere on their itinerary."""
        labels = {queue: self.names.destination_label(queue) for queue in queues}
        held = [label for label in labels.values() if label is not None]
        tiers = [queue for queue, label in labels.items() if label is None]
        return [*await self._rows_in_tiers(tiers, depths), *await self._rows_in_hold(held)]

    async def _rows_in_hold(self, destinations: list[str]) -> list[Open]:
        if not destinations:
            return []
        return await self._open_rows("rows_in_held_queues", settle=self.rules.settle, destinations=destinations)

    async def _rows_in_tiers(self, tiers: list[str], depths: Depths) -> list[Open]:
        if not tiers:
            return []
        bare = all(depth.known and not depth.messages for depth in depths.tiers.values())
        asked = await self._tiers() if bare else await self._tiers(tiers)
        return await self._open_rows("rows_in_first_wait", settle=self.rules.settle, whole_way=bare, **asked)

    async def _open_rows(self, name: str, **parameters: object) -> list[Open]:
        rows = await self.session.rows(name, **parameters)
        return await in_thread(lambda: [Open(*row) for row in rows], "audit rows")

    async def _tiers(self, only: list[str] | None = None) -> dict[str, list[str] | list[int]]:
        names = only if only is not None else [row[0] for row in await self.session.rows("open_by_tier") if row[0]]
        known = {name: ttl for name in names if (ttl := first_wait_ms(self.names, name)) is not None}
        return {"tiers": list(known), "ttls": list(known.values())}


def first_wait_ms(names: Names, tier: str) -> int | None:
    """How long a message stays in this queue; None if it is not a tier. The TTL is part of a tier's name."""
    found = names.parse(tier)
    if found is None or found.delay is None:
        return None
    try:
        return parse_duration(found.delay)
    except ValueError:
        return None

"""`tarry audit verify`: the books and the broker, read and held against each other until they have settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tarry.audit.depths import Depths, read_depths, ready_counts
from tarry.audit.records import Balance
from tarry.audit.report import GRACE, Report
from tarry.audit.store import LEASE
from tarry.audit.verdict import (
    Open,
    Snapshot,
    Verdict,
    deciding_queues,
    empty_tiers,
    judge,
    short_queues,
    unsettled_queues,
)
from tarry.broker.address import Address
from tarry.broker.management import STATISTICS, Management
from tarry.core.durations import parse_duration
from tarry.core.names import Destination, Names
from tarry.errors import BrokerError, BrokerUnreachableError

SETTLE = timedelta(seconds=2)
"""A message so close to the beginning or the end of its wait is in flight, and not judged."""

OFFERED_AGAIN = timedelta(seconds=180)
"""After so long a broker offers again what a queue did not take, or was not there to take: its setting
`dead_letter_worker_publisher_confirm_timeout`, which the management API does not tell."""

PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Rules:
    """How patient the judgement is."""

    grace: timedelta = GRACE
    settle: timedelta = SETTLE
    patience: float = STATISTICS
    """Seconds to look again for, while something is missing or a depth unknown."""
    offered_again: timedelta = OFFERED_AGAIN


@dataclass(frozen=True, slots=True)
class Look:
    """The books and the broker at one moment."""

    snapshot: Snapshot
    depths: Depths
    verdict: Verdict

    @property
    def in_tiers(self) -> int:
        return sum(depth.messages for depth in self.depths.tiers.values())


@dataclass(frozen=True, slots=True)
class Auditor:
    """The two things to read, and how."""

    report: Report
    management: Management
    names: Names
    rules: Rules = Rules()
    sleep: Callable[[float], None] = time.sleep

    @property
    def address(self) -> Address:
        return self.management.address

    def settled(self) -> Look:
        """The first look that proves that nothing is missing, or the last one if none does."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            look = self.look(trust_statistics=waited >= STATISTICS)
            if not (look.verdict.lost or look.verdict.unjudged) or waited > self.rules.patience:
                return look
            self.sleep(PAUSE)

    def look(self, *, trust_statistics: bool = True) -> Look:
        """With statistics that are newer than the question, or by a caller who looks again later, only queues that are
        short by them are asked themselves. Otherwise all queues are asked that decide.
        """
        depths = read_depths(self.management, self.names)
        snapshot = self._snapshot()
        choose = short_queues if trust_statistics else deciding_queues
        ready = self._ready(choose(snapshot, depths))
        depths = depths.with_ready(ready)
        rows = self._rows_of(empty_tiers(snapshot, depths), depths)
        verdict = judge(snapshot, depths, rows, self.rules.grace)
        if not trust_statistics:
            unjudged = sorted({*verdict.unjudged, *unsettled_queues(snapshot, depths, ready)})
            verdict = replace(verdict, unjudged=unjudged)
        return Look(snapshot, depths, verdict)

    def balance(self, *, since: datetime | None = None, queue: str | None = None) -> Balance:
        return self.report.balance(self.rules.grace, since=since, queue=queue)

    def _ready(self, queues: Collection[str]) -> dict[str, int]:
        """A user who may use the management API but not the broker has to do with the statistics."""
        try:
            return ready_counts(self.address, queues) if queues else {}
        except BrokerUnreachableError:
            raise
        except BrokerError:
            return {}

    def _snapshot(self) -> Snapshot:
        rules, rows = self.rules, self.report.rows
        now = rows("clock")[0][0]
        overdue = [Open(*row) for row in rows("overdue_rows", grace=rules.grace)]
        tiers = sorted({row.tier for row in overdue if row.tier})
        return Snapshot(
            now=now,
            waiting=dict(rows("in_first_wait", settle=rules.settle, **self._tiers())) | self._in_hold(),
            overdue=overdue,
            stale_claims=[Open(*row) for row in rows("stale_claims", lease=LEASE + rules.grace)],
            not_overdue=dict(rows("not_overdue_by_tier", tiers=tiers, grace=rules.grace)) if tiers else {},
            passed=dict(rows("passed", tiers=tiers, ago=timedelta())) if tiers else {},
            passed_long_ago=dict(rows("passed", tiers=tiers, ago=rules.offered_again)) if tiers else {},
            tap_seen=rows("tap_seen")[0][0],
        )

    def _in_hold(self) -> dict[str, int]:
        """What is held must be in its held queue."""
        found = self.report.rows("in_hold", settle=self.rules.settle)
        return {self.names.held_queue(Destination(kind, name)): count for kind, name, count in found}

    def _rows_of(self, queues: list[str], depths: Depths) -> list[Open]:
        """Who must be in these queues; with not one message in any tier, who must be anywhere on its way."""
        stem = self.names.held_queue(Destination("queue", ""))
        held = [queue.removeprefix(stem) for queue in queues if queue.startswith(stem)]
        tiers = [queue for queue in queues if not queue.startswith(stem)]
        return [*self._rows_in_tiers(tiers, depths), *self._rows_in_hold(held)]

    def _rows_in_hold(self, destinations: list[str]) -> list[Open]:
        if not destinations:
            return []
        found = self.report.rows("rows_in_hold", settle=self.rules.settle, destinations=destinations)
        return [Open(*row) for row in found]

    def _rows_in_tiers(self, tiers: list[str], depths: Depths) -> list[Open]:
        if not tiers:
            return []
        bare = all(depth.known and not depth.messages for depth in depths.tiers.values())
        asked = self._tiers() if bare else self._tiers(tiers)
        found = self.report.rows("rows_in_first_wait", settle=self.rules.settle, whole_way=bare, **asked)
        return [Open(*row) for row in found]

    def _tiers(self, only: list[str] | None = None) -> dict[str, list[str] | list[int]]:
        names = only if only is not None else [row[0] for row in self.report.rows("open_by_tier") if row[0]]
        known = {name: ttl for name in names if (ttl := first_wait_ms(self.names, name)) is not None}
        return {"tiers": list(known), "ttls": list(known.values())}


def first_wait_ms(names: Names, tier: str) -> int | None:
    """How long a message stays in this queue; None if it is no tier. The TTL is part of a tier's name."""
    for start in (f"{names.delay}.", f"{names.prefix}ladder."):
        if tier.startswith(start):
            try:
                return parse_duration(tier.rpartition(".")[2])
            except ValueError:
                return None
    return None

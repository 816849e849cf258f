"""Looks for anomalies in the statistics, on each audit pass of the leader, and reads those that go on.

What is usual is read once an hour for each queue, or policy, whose retries fail often. Anomalies are in Postgres, so
another leader continues with them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import structlog

from tarry.analytics.anomalies import (
    FEWEST_RETURNS,
    HOUR,
    LONGEST_PAST,
    WINDOW,
    HourCounts,
    Kind,
    Returns,
    Usual,
    begins,
    ends,
    may_begin,
    usual_at,
)
from tarry.analytics.rollups import LATE, StatisticSpan, floor, read_progress
from tarry.core.json_types import DOCUMENTED
from tarry.core.queue_scope import QueueScope
from tarry.store.database import PostgresSession, Queries, Row

log = structlog.get_logger()

AT_ONCE = 50
"""Queues whose past is read in one query."""


@dataclass(frozen=True, slots=True)
class AnomalyNow:
    """A failure rate that is far above the usual one: the share of returns that failed again."""

    __pydantic_config__ = DOCUMENTED

    kind: Kind
    """A queue; or a policy, of which the queues that have few returns each are taken together."""
    name: str
    since: datetime
    rate: float
    """In the hour in progress and the one before."""
    usual_rate: float
    """At this time of the day, or of the week, when it began."""
    highest_rate: float
    returned: int
    """Retries that returned in these two hours."""
    failed: int
    """How many failed again."""
    error: str | None
    """The error of the most failures when it began."""

    def describe(self) -> str:
        """`orders: 97% of 412 returns failed again, usually 31%, most with TimeoutError`."""
        what = self.name if self.kind is Kind.QUEUE else f"policy {self.name}"
        error = f", most with {self.error}" if self.error else ""
        return (
            f"{what}: {self.rate:.0%} of {self.returned:,} returns failed again, usually {self.usual_rate:.0%}{error}"
        )


async def read_anomalies(store: Queries, scope: QueueScope | None = None) -> list[AnomalyNow]:
    """Those that go on. Within a scope, only those of its queues."""
    found = [AnomalyNow(Kind(row[0]), *row[1:]) for row in await store.rows("open_anomalies")]
    return [one for one in found if scope is None or (one.kind is Kind.QUEUE and scope.allows(one.name))]


class _Subject(NamedTuple):
    """Something with a failure rate, and the queues that it is the rate of."""

    kind: Kind
    name: str
    queues: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Kind, str]:
        """What it is, whichever queues of a policy have few returns at this moment."""
        return self.kind, self.name

    @property
    def target(self) -> str:
        """As the action log names it."""
        return self.name if self.kind is Kind.QUEUE else f"policy {self.name}"


@dataclass(slots=True)
class AnomalyWatch:
    """Finds what begins and what ends. Remembers for an hour what is usual."""

    actor: str
    _hour: datetime | None = None
    _usual: dict[tuple[Kind, str], Usual | None] = field(default_factory=dict)

    async def look(self, session: PostgresSession) -> None:
        """One pass. The caller has the lock of the statistics. Those that are late are not judged."""
        progress, row = await read_progress(session), await session.one("clock")
        if progress is None or row is None or row[0] - progress.counted_until > LATE:
            return
        now: datetime = row[0]
        known = {(one.kind, one.name) for one in await read_anomalies(session)}
        seen = _subjects(await session.rows("anomaly_window", since=_since(now), until=now), known)
        await self._learn(session, seen, known, now)
        for kind, name in sorted(known - {one.key for one in seen}):
            await self._go_on(session, _Subject(kind, name), Returns())
        for subject, returns in seen.items():
            if subject.key in known:
                await self._go_on(session, subject, returns)
            else:
                await self._begin(session, subject, returns, now)

    async def _learn(
        self, session: PostgresSession, seen: Mapping[_Subject, Returns], known: set[tuple[Kind, str]], now: datetime
    ) -> None:
        """Reads what is usual where it matters, unless it is known for this hour."""
        if self._hour != floor(now, StatisticSpan.HOUR):
            self._hour, self._usual = floor(now, StatisticSpan.HOUR), {}
        wanted = [one for one, returns in seen.items() if one.key in known or may_begin(returns)]
        new = [one for one in wanted if one.key not in self._usual]
        times = {"since": _since(now) - LONGEST_PAST, "until": _since(now)}
        for some in _slices([one for one in new if one.kind is Kind.QUEUE]):
            past: dict[str, list[HourCounts]] = defaultdict(list)
            for queue, *counts in await session.rows(
                "anomaly_hours_of_queues", queues=[one.name for one in some], **times
            ):
                past[queue].append(HourCounts(*counts))
            self._usual |= {one.key: usual_at(past[one.name], now) for one in some}
        for one in new:
            if one.kind is Kind.POLICY:
                rows = await session.rows("anomaly_hours_of_policy", policy=one.name, queues=list(one.queues), **times)
                self._usual[one.key] = usual_at([HourCounts(*row) for row in rows], now)

    async def _go_on(self, session: PostgresSession, subject: _Subject, now: Returns) -> None:
        why = ends(now, self._usual.get(subject.key))
        about = {"kind": subject.kind, "name": subject.name}
        counts = {"rate": now.rate, "returned": now.returned, "failed": now.failed}
        if why is None:
            await session.change("keep_anomaly", **about, **counts)
        elif await session.change(
            "end_anomaly", why=why, **about, **counts, **self._action(subject, {"reason": why, **counts})
        ):
            log.info("anomaly ended", kind=str(subject.kind), name=subject.name, reason=why)

    async def _begin(self, session: PostgresSession, subject: _Subject, returns: Returns, now: datetime) -> None:
        usual = self._usual.get(subject.key)
        if usual is None or not begins(returns, usual):
            return
        row = await session.one("anomaly_error", queues=list(subject.queues), since=_since(now), until=now)
        error, rate = row[0] if row else None, returns.rate
        text = AnomalyNow(subject.kind, subject.name, now, rate, usual.rate, rate, *returns, error).describe()
        about = {"kind": subject.kind, "name": subject.name}
        counts = {"rate": rate, "usual_rate": usual.rate, "returned": returns.returned, "failed": returns.failed}
        action = self._action(subject, {"reason": text, "error": error, **counts})
        if await session.change("begin_anomaly", **about, error=error, **counts, **action):
            log.warning("anomaly began", kind=str(subject.kind), name=subject.name, reason=text)

    def _action(self, subject: _Subject, detail: Mapping[str, object]) -> dict[str, object]:
        """What becomes the event."""
        outcome = json.dumps({"scope": str(subject.kind)})
        return {"actor": self.actor, "target": subject.target, "detail": json.dumps(detail), "outcome": outcome}


def _since(now: datetime) -> datetime:
    """When the window begins."""
    return floor(now, StatisticSpan.HOUR) - (WINDOW - 1) * HOUR


def _subjects(rows: Sequence[Row], known: set[tuple[Kind, str]]) -> dict[_Subject, Returns]:
    """Each queue; and each policy with the queues that have too few returns to be judged on their own. If one of them
    has most of the failures, it is not about the policy.
    """
    by_queue: dict[str, Returns] = defaultdict(Returns)
    for queue, _, returned, failed in rows:
        by_queue[queue] = Returns(by_queue[queue].returned + returned, by_queue[queue].failed + failed)
    by_policy: dict[str, dict[str, Returns]] = defaultdict(dict)
    for queue, policy, returned, failed in rows:
        if policy and by_queue[queue].returned < FEWEST_RETURNS and (Kind.QUEUE, queue) not in known:
            by_policy[policy][queue] = Returns(returned, failed)
    found = {_Subject(Kind.QUEUE, queue, (queue,)): returns for queue, returns in by_queue.items()}
    for policy, parts in by_policy.items():
        total = Returns(sum(one.returned for one in parts.values()), sum(one.failed for one in parts.values()))
        if 2 * max(one.failed for one in parts.values()) <= total.failed:
            found[_Subject(Kind.POLICY, policy, tuple(sorted(parts)))] = total
    return found


def _slices(subjects: Sequence[_Subject]) -> Iterator[Sequence[_Subject]]:
    for place in range(0, len(subjects), AT_ONCE):
        yield subjects[place : place + AT_ONCE]

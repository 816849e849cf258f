"""The judgement: what the books say is waiting, held against what the broker has. Pure; the shell is in `verify`.

A tier's content cannot be listed without taking it out, so a single message is judged by these rules:

* An open retry in its first tier, settled there and not about to leave, must be in that queue. If the queue holds
  fewer than that, the difference is missing. If it holds none, each of them is missing and is named; else it is known
  how many are missing, and which ones once they are overdue. Nothing is lost by waiting: none would have run earlier.
  The same goes for what is held while its destination is paused: it must be in the held queue.
* An overdue retry is missing, and named, once nothing on the broker can have it any more: its tier is empty-handed or
  has let later ones go, the tap is past it, and no queue that keeps messages on purpose has any.
* What a tier or a relay has let go is with its dead-letter worker until the next queue has taken it. After a restart,
  or when a queue had no leader, the worker offers it again only after three minutes, while later ones pass it by. So as
  long as a worker holds any, a retry is missing only if a later one had passed longer ago than that.
* Else it is late: it is on the broker, and the verdict says where it can be.
* Statistics of the broker are seconds old. Where only they say that a queue has what it must have, and not the queue
  itself, it is not judged until they are newer than the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tarry.audit.depths import Depths
from tarry.core.names import Destination

WORKER_SLOTS = 32
"""Messages that a dead-letter worker moves at once; those behind a full relay have not passed the tap."""


@dataclass(frozen=True, slots=True)
class Open:
    """A retry that the books have open."""

    retry_id: str
    round: int
    message_id: str | None
    queue: str
    exchange: str
    state: str
    tier: str | None
    due: datetime
    rebuildable: bool
    expected: datetime | None = None
    """When the broker should have let it go."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The books at one moment."""

    now: datetime
    waiting: Mapping[str, int]
    """For each tier, how many must be in it."""
    overdue: Sequence[Open] = ()
    stale_claims: Sequence[Open] = ()
    not_overdue: Mapping[str, int] = field(default_factory=dict)
    """For each tier of an overdue one, how many others can be in it by right."""
    passed: Mapping[str, datetime] = field(default_factory=dict)
    """For each tier, the latest expected moment of what it has let go."""
    passed_long_ago: Mapping[str, datetime] = field(default_factory=dict)
    """The same as it was when what a worker holds now was offered last, or before."""
    tap_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """One that the broker does not have."""

    retry: Open
    why: str


@dataclass(frozen=True, slots=True)
class Late:
    """One that has not returned, and where it can be."""

    retry: Open
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shortage:
    """A tier that holds fewer than it must."""

    tier: str
    expected: int
    found: int

    @property
    def missing(self) -> int:
        return self.expected - self.found


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found."""

    missing: Sequence[Missing] = ()
    shortages: Sequence[Shortage] = ()
    """Tiers of which it is known how many are missing, but not which ones yet."""
    late: Sequence[Late] = ()
    unjudged: Sequence[str] = ()
    """Queues whose depth the broker could not tell."""

    @property
    def lost(self) -> int:
        return len(self.missing) + sum(shortage.missing for shortage in self.shortages)


def short_queues(snapshot: Snapshot, depths: Depths) -> set[str]:
    """Queues that hold less than they must."""
    return {tier for tier, count in snapshot.waiting.items() if depths[tier].waiting < count}


def deciding_queues(snapshot: Snapshot, depths: Depths) -> set[str]:
    """Queues whose depth decides whether something is missing: those that must hold something, and those that are said
    to hold something that may be an overdue retry, or a claimed one's request.
    """
    names = depths.names
    others: set[str] = set()
    for row in snapshot.overdue:
        ways = _ways(row)
        others |= {row.tier or names.delay, names.relay, names.audit, names.unroutable, names.cancelled}
        others |= {queue for way in ways for queue in (names.relay_queue(way), names.held_queue(way))}
    if snapshot.stale_claims:
        others |= {names.scheduled, names.audit}
    must = {tier for tier, count in snapshot.waiting.items() if count}
    return must | {queue for queue in others if depths[queue].messages}


def unsettled_queues(snapshot: Snapshot, depths: Depths, ready: Mapping[str, int]) -> list[str]:
    """Queues that hold what they must only by statistics: `ready` is what the queues themselves have said."""
    return [tier for tier, count in snapshot.waiting.items() if ready.get(tier, 0) < count <= depths[tier].waiting]


def empty_tiers(snapshot: Snapshot, depths: Depths) -> list[str]:
    """Tiers that must hold something and hold nothing: all that the books have in them is missing."""
    short = (tier for tier, count in snapshot.waiting.items() if count)
    return [tier for tier in short if depths[tier].known and not depths[tier].waiting]


def judge(
    snapshot: Snapshot, depths: Depths, in_empty_tiers: Sequence[Open] = (), grace: timedelta = timedelta()
) -> Verdict:
    """`in_empty_tiers` are the rows behind `empty_tiers`."""
    missing = [
        Missing(row, f"{row.tier if row.state != 'held' else 'its held queue'} is empty") for row in in_empty_tiers
    ]
    late: list[Late] = []
    for row in snapshot.overdue:
        where = tuple(_places(row, snapshot, depths, grace))
        if where:
            late.append(Late(row, where))
        else:
            missing.append(Missing(row, "overdue, and nowhere on the broker"))
    missing += [Missing(row, "claimed, and its request is gone") for row in _without_request(snapshot, depths)]
    return Verdict(missing, _shortages(snapshot, depths), late, _unjudged(snapshot, depths))


def _shortages(snapshot: Snapshot, depths: Depths) -> list[Shortage]:
    return [
        Shortage(tier, count, depths[tier].waiting)
        for tier, count in sorted(snapshot.waiting.items())
        if depths[tier].known and 0 < depths[tier].waiting < count
    ]


def _unjudged(snapshot: Snapshot, depths: Depths) -> list[str]:
    asked = {*snapshot.waiting, *(row.tier for row in snapshot.overdue if row.tier)}
    return sorted(queue for queue in asked if not depths[queue].known)


def _without_request(snapshot: Snapshot, depths: Depths) -> Sequence[Open]:
    """A request stays until its successor is confirmed, and its record goes through the tap's queue at worst."""
    names = depths.names
    somewhere = [depths[names.scheduled], depths[names.audit]]
    gone = all(depth.known and not depth.messages for depth in somewhere)
    return snapshot.stale_claims if gone else ()


def _places(row: Open, snapshot: Snapshot, depths: Depths, grace: timedelta) -> Iterator[str]:
    """Where an overdue message can still be."""
    names, expected = depths.names, row.expected or row.due
    tier = row.tier or names.delay
    offered_again = snapshot.passed_long_ago.get(tier, expected) > expected
    on_the_move = any(depth.moving or not depth.known for depth in depths.tiers.values()) and not offered_again
    crowded = depths[tier].messages > snapshot.not_overdue.get(tier, 0)
    if on_the_move or (crowded and snapshot.passed.get(tier, expected) <= expected):
        yield tier
    if depths[names.audit].messages and (snapshot.tap_seen is None or snapshot.tap_seen < expected + grace):
        yield names.audit
    ways = _ways(row)
    relays = [names.relay_queue(way) for way in ways if names.relay_queue(way) in depths.queues] or [names.relay]
    for queue in relays:
        few = depths[queue].messages < WORKER_SLOTS
        if not depths[queue].known or not few or (depths[queue].moving and not offered_again):
            yield queue
    for queue in (*(names.held_queue(way) for way in ways), names.unroutable, names.cancelled):
        if depths[queue].messages or not depths[queue].known:
            yield queue


def _ways(row: Open) -> list[Destination]:
    """How it can return: to its queue, or through its exchange."""
    return [Destination("queue", row.queue), *([Destination("exchange", row.exchange)] if row.exchange else [])]

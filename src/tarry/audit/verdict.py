"""Audit verdict: compares what the store says is waiting with what the broker has. Pure; `verify` does the I/O.

The content of a tier cannot be listed without consuming it, so a single message is judged by these rules:

* An open retry in its first tier, past the settling time and not about to leave, must be in that queue. If the queue
  holds fewer messages than that, the difference is missing. If it holds none, each of those retries is missing and is
  named. Otherwise only the number of missing retries is known at first, and they are named once they are overdue.
  Waiting loses nothing: none of them would have run earlier. The same applies to retries that are held while their
  destination is paused: they must be in the held queue.
* An overdue retry is missing, and named, once nothing on the broker can contain it any more: its tier has no messages
  beyond those that are not overdue, or has released later ones; the tap has read past it; and no queue that retains
  messages on purpose, and can contain this one, has any.
* A message that a tier or a relay has released is held by the dead-letter worker until the next queue has confirmed it.
  After a restart, or when a queue had no leader, the worker offers it again only after three minutes, while later
  messages overtake it. So while a worker holds any message, a retry is missing only if a later one had passed longer
  ago than that.
* A delay that is longer than the ladder holds takes several legs. The store has the first queue and the end of the
  current one. At the end of a leg that is not the last, the message is in the layover queue until the router has sent
  the next one: it is overdue if that was not recorded, and late while that queue has messages.
* A message that is due and whose policy asks about it then is in the check queue until a consumer has decided: it is
  late while that queue has messages. It may be held afterwards, so a held queue may lack as many messages as the check
  queues have.
* Otherwise the retry is late: it is on the broker, and the verdict says where it can be.
* Broker statistics are seconds old. If only the statistics, and not the queue itself, say that a queue holds what it
  must, the queue is not judged until the statistics are newer than the start of the audit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tarry.audit.depths import Depths
from tarry.core.names import Destination, Gate, Names, holder_of_label

WORKER_SLOTS = 32
"""Messages that a dead-letter worker moves at a time. Messages behind a full relay have not passed the tap."""


@dataclass(frozen=True, slots=True)
class Open:
    """A retry that is open in the store."""

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
    """When the broker should have released it; on a layover, when it should have been with the router."""
    on_layover: bool = False
    """Whether its delay takes several legs and this is not the last: it has yet to return to the router."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the store at one moment."""

    now: datetime
    waiting: Mapping[str, int]
    """For each tier, how many messages must be in it."""
    overdue: Sequence[Open] = ()
    stale_claims: Sequence[Open] = ()
    not_overdue: Mapping[str, int] = field(default_factory=dict)
    """For each tier of an overdue retry, how many retries that are not overdue can be in it."""
    passed: Mapping[str, datetime] = field(default_factory=dict)
    """For each tier, the latest expected time among the retries that it has released."""
    passed_long_ago: Mapping[str, datetime] = field(default_factory=dict)
    """The same, as of the last time a worker offered the messages that it holds now, or earlier."""
    gates: Mapping[str, Collection[str]] = field(default_factory=dict)
    """For each overdue retry, by its id: the held queues of gates, and the check queues, that it can be in."""
    tap_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """A retry that the broker does not have."""

    retry: Open
    why: str


@dataclass(frozen=True, slots=True)
class Late:
    """An overdue retry, and the queues that it can be in."""

    retry: Open
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shortage:
    """A tier that holds fewer messages than it must."""

    tier: str
    expected: int
    found: int

    @property
    def missing(self) -> int:
        return self.expected - self.found


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result of an audit."""

    missing: list[Missing] = field(default_factory=list)
    shortages: list[Shortage] = field(default_factory=list)
    """Tiers with a known number of missing retries that cannot be named yet."""
    late: list[Late] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    """Queues whose depth is not known."""

    @property
    def lost(self) -> int:
        return len(self.missing) + sum(shortage.missing for shortage in self.shortages)


def can_hold(label: str, carried: Collection[str] | None, policy: str | None) -> bool:
    """Whether the gate with this label can hold a retry whose message carries these labels. If its properties were not
    stored (None), only its policy is known: any job type can apply to it, and it can be an automatic retry.
    """
    if carried is not None:
        return label in carried
    gate = holder_of_label(label)
    return gate.kind != "policy" or policy is None or label == Gate("policy", policy).label


def short_queues(snapshot: Snapshot, depths: Depths) -> set[str]:
    """Queues that hold fewer messages than they must."""
    return {tier for tier, count in snapshot.waiting.items() if depths[tier].waiting < count}


def deciding_queues(snapshot: Snapshot, depths: Depths) -> set[str]:
    """Queues whose depth decides whether something is missing: those that must hold messages, and those that, by
    the statistics, hold messages which may be an overdue retry or the request of a claimed one.
    """
    names = depths.names
    others: set[str] = set()
    for row in snapshot.overdue:
        ways = _ways(row)
        others |= {row.tier or names.delay, names.relay, names.audit, names.unroutable, names.cancelled, names.layover}
        others |= {queue for way in ways for queue in (names.relay_queue(way), names.held_queue(way))}
        others |= set(_relays(row, depths))
        others |= set(snapshot.gates.get(row.retry_id, ()))
    if snapshot.stale_claims:
        others |= {names.scheduled, names.audit}
    must = {tier for tier, count in snapshot.waiting.items() if count}
    return must | {queue for queue in others if depths[queue].messages}


def unsettled_queues(snapshot: Snapshot, depths: Depths, ready: Mapping[str, int]) -> list[str]:
    """Queues that hold what they must by the statistics only; `ready` has the counts from the queues themselves."""
    return [tier for tier, count in snapshot.waiting.items() if ready.get(tier, 0) < count <= depths[tier].waiting]


def empty_tiers(snapshot: Snapshot, depths: Depths) -> list[str]:
    """Tiers that must hold messages and are empty: everything that the store has in them is missing."""
    short = (tier for tier, count in snapshot.waiting.items() if count)
    return [tier for tier in short if depths[tier].known and not depths[tier].waiting]


def judge(
    snapshot: Snapshot, depths: Depths, in_empty_tiers: Sequence[Open] = (), grace: timedelta = timedelta()
) -> AuditVerdict:
    """Apply the rules. `in_empty_tiers` are the retries that must be in the queues of `empty_tiers`."""
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
    return AuditVerdict(missing, _shortages(snapshot, depths), late, _unjudged(snapshot, depths))


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
    """A request stays queued until its successor is confirmed; at worst its record goes through the tap's queue."""
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
    # The record of a leg, and what a check queue has let go, can be in the tap's queue however late that was: the tap
    # must have read up to now.
    checked = any(_is_check(queue, names) for queue in snapshot.gates.get(row.retry_id, ()))
    needed = snapshot.now - grace if row.on_layover or checked else expected + grace
    read_past = snapshot.tap_seen is not None and snapshot.tap_seen >= needed
    if depths[names.audit].messages and not read_past:
        yield names.audit
    yield from _kept_in((names.unroutable, names.cancelled), depths)
    if row.on_layover:
        yield from _kept_in((names.layover,), depths)
        return
    ways = _ways(row)
    for queue in _relays(row, depths):
        few = depths[queue].messages < WORKER_SLOTS
        if not depths[queue].known or not few or (depths[queue].moving and not offered_again):
            yield queue
    yield from _kept_in((*map(names.held_queue, ways), *snapshot.gates.get(row.retry_id, ())), depths)


def _relays(row: Open, depths: Depths) -> Iterator[str]:
    """The relays that it can be in: those of its lane, if it was sent to one, and the others. A message that is
    published again, because it was unroutable or missing, leaves its lane.
    """
    names = depths.names
    lane = names.lane_of(row.tier) if row.tier else None
    for one in dict.fromkeys((None, lane)):
        own = [names.relay_queue(way, one) for way in _ways(row)]
        yield from [queue for queue in own if queue in depths.queues] or [names.relay_of(one)]


def _is_check(queue: str, names: Names) -> bool:
    found = names.parse(queue)
    return found is not None and found.kind == "check"


def _kept_in(queues: Iterable[str], depths: Depths) -> Iterator[str]:
    return (queue for queue in queues if depths[queue].messages or not depths[queue].known)


def _ways(row: Open) -> list[Destination]:
    """The destinations that it can return to: its queue, or its exchange."""
    return [Destination("queue", row.queue), *([Destination("exchange", row.exchange)] if row.exchange else [])]

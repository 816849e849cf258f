"""Row types of the store: what routers and the tap write, and what the store returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from tarry.contract.identity import retry_id
from tarry.contract.trace import TraceContext
from tarry.core.ladder import Itinerary
from tarry.core.states import State


class Claim(NamedTuple):
    """A request that a router wants to act on."""

    retry_id: str
    """The retry that the request names, or the id of a new one."""
    round: int
    """The round that the request asks for: one more than the round that failed."""
    knows_round: bool
    redelivered: bool
    """The broker's redelivered flag; for a dead-lettered request it says nothing."""
    retry_count: int
    queue: str
    message_id: str | None
    since_ms: int | None
    identity: str | None = None
    matchable: bool = False
    """Whether a request without tarry's headers may be recognised by its identity."""
    death: str | None = None
    """Which dead-lettering created the request. The same value again means the same request."""
    by_content: bool = True
    """Whether an equal message from a different dead-lettering is a different message."""

    def set_apart(self) -> Claim:
        """The same request for a new retry: the retry that it names belongs to another message. Keeps its round."""
        return self._replace(retry_id=retry_id(self.identity or "", self.retry_id, str(self.round)))


class Granted(NamedTuple):
    """A granted claim, with values from the store that replace those of the request."""

    retry_id: str
    round: int
    retry_count: int
    since_ms: int | None


class Claimed(NamedTuple):
    """The answer to a batch of claims, by the retry id of each claim."""

    granted: dict[str, Granted]
    duplicate_of: dict[str, str]
    """Duplicates, each with the retry whose request it repeats."""


class Record(NamedTuple):
    """The outcome of one request, and everything needed to rebuild its message."""

    retry_id: str
    round: int
    state: State
    queue: str
    reason: str | None = None
    exchange: str = ""
    routing_key: str = ""
    message_id: str | None = None
    retry_count: int = 0
    max_retries: int | None = None
    policy: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    error_reason: str | None = None
    since_ms: int | None = None
    due_ms: int | None = None
    delay_ms: int | None = None
    tier: str | None = None
    body: bytes | None = None
    properties: bytes | None = None
    identity: str | None = None
    death: str | None = None
    guessed_round: int = 0
    """The latest round that began without tarry's headers, as far as this router knows."""
    owner: str | None = None
    job_type: str | None = None
    priority: str | None = None
    """The `priority` of the request, not of the AMQP message."""
    hint_ms: int | None = None
    """The wait that the request asked for."""
    deferred_from_ms: int | None = None
    """When it would be due without the budgets of its policy, if they deferred it."""
    budget: str | None = None
    """The budget that had no room for it, in words."""


class Charge(NamedTuple):
    """A retry that asks for room in the budgets of its policy."""

    retry_id: str
    round: int
    owner: str | None
    queue: str
    slot: int
    """The slot that its due time is in, counted from 1."""
    due_ms: int
    latest_ms: int
    """It may not come due later."""
    draw: int
    """Its part of the spread, in millionths."""
    now_ms: int
    """When it asks: if it was charged before, and should have come due by then, it is charged anew."""


class ChargeOutcome(StrEnum):
    """The answer to a charge."""

    CHARGED = "charged"
    REVIEW = "review"
    SKIP = "skip"
    LATE = "late"
    """The first room is too late for the message."""
    BEYOND = "beyond"
    """There is no room for as long as a message can wait."""
    MORE = "more"
    """No given slot had room, and there are later ones. This answer is not stored."""


class Charged(NamedTuple):
    """The answer to a charge. It is the same when it is asked for again before its due time."""

    retry_id: str
    round: int
    outcome: ChargeOutcome
    due_ms: int | None
    """When it comes due, if it is charged."""
    full: str | None
    """The key of the budget that had no room when it would have come due; None if all had."""
    most: int | None
    """The limit of that budget then."""


class LegKey(NamedTuple):
    """Identifies a leg. A round that is redriven has another due time, and its legs are counted from 1 again."""

    retry_id: str
    round: int
    due_ms: int
    content: str
    """A hash of the message: two messages with the same retry id and different content are never one."""
    leg: int

    @property
    def next(self) -> LegKey:
        return self._replace(leg=self.leg + 1)


class Leg(NamedTuple):
    """One leg of a delay that is longer than the ladder holds, as it was sent."""

    retry_id: str
    round: int
    due_ms: int
    content: str
    leg: int
    tier: str
    """The first queue of this leg."""
    at_ms: int
    delay_ms: int
    """The rest of the delay, this leg included."""
    wait_ms: int | None
    """How long this leg takes; None for the last one, which ends at the destination."""

    @classmethod
    def of(cls, key: LegKey, way: Itinerary, tier: str, at_ms: int) -> Leg:
        return cls(*key, tier, at_ms, way.delay_ms, way.leg_ms or None)

    @property
    def key(self) -> LegKey:
        return LegKey(self.retry_id, self.round, self.due_ms, self.content, self.leg)


class Return(NamedTuple):
    """A return that the tap has seen."""

    retry_id: str
    round: int
    queue: str
    retry_count: int
    due_ms: int
    at_ms: int
    redelivered: bool
    tier: str = ""
    """The policy tier that it waited in, or the ladder."""
    held: bool = False
    """Whether it was in a held queue before."""
    trace: TraceContext | None = None
    """The sampled trace that it belongs to, if its wait is to be a span."""
    scheduled_ms: int = 0
    """When its wait began, if it has a trace."""


class RecordedReturn(NamedTuple):
    """A return that the store has recorded for the first time."""

    seen: Return
    comes_due: bool
    """False if it was known to be due before: it was held, or unroutable and published again."""
    by_person: bool
    """Whether a person began it: by a retry-now, a redrive, or the release of a pause."""


class RecordedCancel(NamedTuple):
    """A diverted message that the store has recorded for the first time."""

    seen: Return
    comes_due: bool
    """False if it was held before."""


class SkippedWhenDue(NamedTuple):
    """A retry that was skipped when it was due, as the store has recorded it for the first time."""

    retry_id: str
    round: int
    queue: str
    message_id: str | None
    policy: str | None
    error_class: str | None
    reason: str
    comes_due: bool
    """False if it was known to be due before: it was held, or unroutable and published again."""


class Success(NamedTuple):
    """A retry that succeeded, as the store has recorded it for the first time."""

    retry_id: str
    round: int
    queue: str
    message_id: str | None
    attempt: int
    since_first_failure_ms: int
    """Until its consumer was done; if it is presumed, until its return."""
    presumed: bool = False


GRACE = timedelta(seconds=30)
"""A retry this long past its due time, and not seen to return, is overdue."""


@dataclass(frozen=True, slots=True)
class StuckLimits:
    """How long an attempt may run before it is stuck. None: never."""

    after: timedelta | None = timedelta(minutes=30)
    by_policy: Mapping[str, timedelta] = field(default_factory=dict)
    """The limits of policies that have their own."""

    def parameters(self) -> dict[str, Any]:
        """The parameters of the queries."""
        return {"after": self.after, "policies": list(self.by_policy), "afters": list(self.by_policy.values())}


@dataclass(frozen=True, slots=True)
class Balance:
    """Totals of the audit. Every round ever requested has exactly one outcome; an overdue one has none yet."""

    retries: int
    scheduled: int
    """Rounds that the broker confirmed into a tier, whatever their outcome."""
    returned: int
    in_review: int
    waiting: int
    claimed: int
    unroutable: int
    duplicates: int
    """Repeated requests."""
    overdue: int
    """Of the scheduled, held and unroutable rounds: due longer ago than the grace period, and not seen to return."""
    cancelled: int = 0
    held: int = 0
    discarded: int = 0
    unseen: int = 0
    """Certainly returned, since a later round began, but not seen by the tap."""
    recovered: int = 0
    """Of all rounds: published again by `tarry audit recover`."""
    twice: int = 0
    """Copies that passed the tap a second time: a consumer received a message twice."""
    rounds: int = 0
    skipped: int = 0
    """Ended by a rule of their policy."""

    @property
    def requests(self) -> int:
        """All requests received."""
        return self.rounds + self.duplicates

    @property
    def accounted(self) -> int:
        """The sum of all outcomes."""
        settled = self.returned + self.unseen + self.in_review + self.cancelled + self.discarded + self.skipped
        return settled + self.waiting + self.held + self.claimed + self.unroutable + self.duplicates

    @property
    def lost(self) -> int:
        """As far as the store alone can tell; `verify` also checks the broker."""
        return max(0, self.requests - self.accounted) + self.overdue


@dataclass(frozen=True, slots=True)
class Drift:
    """How late returns were, in milliseconds."""

    count: int
    least: int
    p50: int
    p99: int
    most: int


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One retry that waits in a tier."""

    queue: str
    tier: str
    due: datetime
    attempt: int
    most: int
    message: str


@dataclass(frozen=True, slots=True)
class ReviewedRow:
    """One message in review."""

    queue: str
    message: str
    reason: str
    at: datetime

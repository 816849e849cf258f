"""Circuit breakers: when a destination gets no returns, because too many of them fail again. Pure: the time and the
counts are arguments.

* Closed: messages return. It opens when the share of returns that failed again reaches the limit.
* Open: nothing returns, for `wait`.
* Half-open: one message returns, the probe. If it fails, the breaker is open again, for twice as long. If nobody knows
  whether it succeeded, the breaker stays half-open.
* Closing: the rest returns, slowly at first. The rate doubles while the share is below the limit. If it is not, the
  breaker is open again, for twice as long. Once nothing waits any more, it is closed.

The wait goes back to `wait` once the breaker has been closed for as long as the last wait, and for at least `within`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from tarry.core.duration_field import Duration
from tarry.core.durations import format_duration, humanise
from tarry.core.model import Model, Whole
from tarry.core.share_field import Share

SECOND_MS = 1_000
HOUR_MS = 3_600_000

FIRST_RATE = 1
"""Messages per second, at the beginning of a release."""

STEPS = 10
"""In how many steps of the release `wait` is divided."""

SHORTEST_STEP = timedelta(seconds=1)
LONGEST_STEP = timedelta(seconds=10)
"""How long the release keeps a rate before it doubles: bounds of `wait` divided by `STEPS`."""

LONGEST_OBSERVE = timedelta(seconds=10)
"""The minimum time for which a probe is watched, unless `wait` is shorter."""


class Breaker(Model):
    """When a queue gets no returns, because too many of them fail again."""

    failed: Share = Field(
        0.5,
        description="It opens when this share of the returns fails again; default: 50%.",
        json_schema_extra={"default": "50%"},
    )
    of: Whole = Field(
        20,
        ge=1,
        le=1_000_000,
        description="It does not open with fewer returns than this within the time; default: 20.",
    )
    within: Duration = Field(
        60_000, ge=SECOND_MS, le=HOUR_MS, description="The time in which returns and failures are counted; default: 1m."
    )
    wait: Duration = Field(
        30_000, ge=SECOND_MS, description="How long it is open before one message returns, as a probe; default: 30s."
    )
    longest_wait: Duration = Field(
        900_000, description="The wait doubles each time the probe fails, up to this; default: 15m."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.longest_wait < self.wait:
            given, most = format_duration(self.wait), format_duration(self.longest_wait)
            raise ValueError(f"longest_wait {most} is below wait {given}")
        return self

    @property
    def window(self) -> timedelta:
        return timedelta(milliseconds=self.within)

    @property
    def first_wait(self) -> timedelta:
        return timedelta(milliseconds=self.wait)

    @property
    def step(self) -> timedelta:
        """How long the release keeps a rate before it doubles."""
        return min(max(self.first_wait / STEPS, SHORTEST_STEP), LONGEST_STEP)

    @property
    def observe(self) -> timedelta:
        """The minimum time for which a probe is watched."""
        return min(self.first_wait, LONGEST_OBSERVE)

    def twice(self, wait: timedelta) -> timedelta:
        return min(max(wait * 2, self.first_wait), timedelta(milliseconds=self.longest_wait))

    def describe(self) -> str:
        """`opens if 50% of at least 20 returns within 1m fail again; probes after 30s, at most 15m`."""
        return (
            f"opens if {self.failed * 100:g}% of at least {self.of} returns within {humanise(self.within)} fail again; "
            f"probes after {humanise(self.wait)}, at most {humanise(self.longest_wait)}"
        )


class BreakerState(StrEnum):
    """The state of a breaker."""

    CLOSED = "closed"
    """Messages return."""
    OPEN = "open"
    """Nothing returns."""
    HALF_OPEN = "half_open"
    """One message returns, as a probe."""
    CLOSING = "closing"
    """The messages that waited return, at a rate that doubles."""


class ReturnCounts(NamedTuple):
    """What happened in the time that is counted."""

    returned: int = 0
    failed: int = 0
    """Returns that failed again, counted when they failed. They may have returned before that time."""

    @property
    def number(self) -> int:
        return max(self.returned, self.failed)

    @property
    def share(self) -> float:
        return self.failed / self.number if self.number else 0.0

    def describe(self) -> str:
        """`21 of 24 returns failed again`."""
        return f"{self.failed} of {self.number} returns failed again"


class StoredBreaker(NamedTuple):
    """A breaker, as it is stored."""

    state: BreakerState = BreakerState.CLOSED
    since: datetime | None = None
    """When it came into this state; None if it was never open."""
    wait: timedelta | None = None
    """The last wait."""
    probe_at: datetime | None = None
    """While it is open: when it becomes half-open. None: not by itself."""
    step_at: datetime | None = None
    """While it is closing: when the rate was last changed."""
    is_forced: bool = False
    """Whether a person keeps it open or closed."""
    forced_until: datetime | None = None


class ReleaseState(NamedTuple):
    """The state of the held queue, as far as it matters to the breaker."""

    is_paused: bool = False
    """Whether an operator's pause holds the messages."""
    has_passed: bool = False
    """Whether the probe has passed."""
    has_failed: bool = False
    """Whether the probe has failed."""
    is_over: bool = False
    """Whether nothing waits any more."""


class Move(NamedTuple):
    """The next state of a breaker."""

    state: BreakerState
    reason: str
    wait: timedelta | None = None
    probe_at: datetime | None = None


def trips(rule: Breaker, counts: ReturnCounts) -> bool:
    return counts.number >= rule.of and counts.share >= rule.failed


def next_move(
    rule: Breaker, standing: StoredBreaker, counts: ReturnCounts, release: ReleaseState, now: datetime
) -> Move | None:
    """The change that is due; None if there is none."""
    if standing.is_forced:
        return _end_of_force(standing, release, now)
    match standing.state:
        case BreakerState.CLOSED:
            return _when_closed(rule, standing, counts, release, now)
        case BreakerState.OPEN:
            return _when_open(standing, release, now)
        case BreakerState.HALF_OPEN:
            return _when_half_open(rule, standing, release, now)
        case BreakerState.CLOSING:
            return _when_closing(rule, standing, counts, release, now)


def doubles(rule: Breaker, standing: StoredBreaker, counts: ReturnCounts, now: datetime) -> bool:
    """Whether the rate of a release doubles now."""
    is_time = standing.step_at is None or now - standing.step_at >= rule.step
    return is_time and counts.share < rule.failed


def wait_of_next(rule: Breaker, standing: StoredBreaker, now: datetime) -> timedelta:
    """How long it would be open if it opened now."""
    if standing.since is None or standing.wait is None:
        return rule.first_wait
    is_sound = now - standing.since >= max(standing.wait, rule.window)
    return rule.first_wait if is_sound else rule.twice(standing.wait)


def rule_of(rules: Iterable[Breaker | None]) -> Breaker | None:
    """Of the breakers of a queue's policies, the first applies."""
    return next((rule for rule in rules if rule is not None), None)


def _opened(reason: str, wait: timedelta, now: datetime) -> Move:
    return Move(BreakerState.OPEN, reason, wait, now + wait)


def _paused(standing: StoredBreaker, now: datetime) -> Move:
    """It goes on with a probe as soon as the pause has ended."""
    return Move(BreakerState.OPEN, "an operator has paused the queue", standing.wait, now)


def _end_of_force(standing: StoredBreaker, release: ReleaseState, now: datetime) -> Move | None:
    is_over = standing.forced_until is not None and standing.forced_until <= now
    if not is_over or release.is_paused or standing.state is not BreakerState.OPEN:
        return None
    return Move(BreakerState.HALF_OPEN, "the time for which it was opened is over", standing.wait)


def _when_closed(
    rule: Breaker, standing: StoredBreaker, counts: ReturnCounts, release: ReleaseState, now: datetime
) -> Move | None:
    if release.is_paused or not trips(rule, counts):
        return None
    return _opened(counts.describe(), wait_of_next(rule, standing, now), now)


def _when_open(standing: StoredBreaker, release: ReleaseState, now: datetime) -> Move | None:
    if release.is_paused or standing.probe_at is None or now < standing.probe_at:
        return None
    return Move(BreakerState.HALF_OPEN, "the wait is over", standing.wait)


def _when_half_open(rule: Breaker, standing: StoredBreaker, release: ReleaseState, now: datetime) -> Move | None:
    if release.has_failed:
        return _opened("the probe failed again", rule.twice(standing.wait or rule.first_wait), now)
    if release.is_paused:
        return _paused(standing, now)
    if release.has_passed or release.is_over:
        return Move(BreakerState.CLOSING, "the probe succeeded", standing.wait)
    return None


def _when_closing(
    rule: Breaker, standing: StoredBreaker, counts: ReturnCounts, release: ReleaseState, now: datetime
) -> Move | None:
    if trips(rule, counts):
        return _opened(counts.describe(), rule.twice(standing.wait or rule.first_wait), now)
    if release.is_paused:
        return _paused(standing, now)
    return Move(BreakerState.CLOSED, "nothing waits any more", standing.wait) if release.is_over else None

"""Decides whether a failed message is retried, after which delay, or goes to review. Pure: `now` is an argument.

A guard can turn a decision to schedule into a skip: the message is not wanted any more. Or into a review: the history
says that the retries of its error do not succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

from tarry.core.adaptive import ErrorsGivenUp
from tarry.core.budgets import NO_CAPS, Caps
from tarry.core.durations import humanise
from tarry.core.fingerprint import fingerprint
from tarry.core.ladder import LONGEST_DELAY, Itinerary, Ladder, itinerary
from tarry.core.names import Check
from tarry.core.policy import ErrorClass, Policy
from tarry.core.windows import HORIZON, Opening, next_opening
from tarry.errors import DelayTooLongError

K = TypeVar("K")
V = TypeVar("V")

MOST_REMEMBERED = 32_768
"""Results of each kind that are cached: those of ten thousand queues, some of which have several job types."""

SPREAD_DIGITS = 2**20
"""Skips the leading binary digits of a draw; the rest are a draw of their own."""


class Failure(NamedTuple):
    """What a decision knows about one failed message."""

    queue: str
    """The queue it failed in."""
    retry_count: int = 0
    """Retries already used."""
    round: int = 0
    """Rounds already made, including those that used no attempt."""
    first_failed_ms: int | None = None
    """When its first failure was seen; None means now."""
    max_retries: int | None = None
    error_type: str | None = None
    error_reason: str | None = None
    error_class: ErrorClass | None = None
    retry_after_ms: int | None = None
    next_retry_at_ms: int | None = None
    priority: str | None = None
    job_type: str | None = None
    owner: str | None = None
    """Whom the message belongs to: a user, a tenant, an organisation."""
    import_due_ms: int | None = None
    """When a wait that began elsewhere ends. The retry is already counted, and the due time is kept."""


class Schedule(NamedTuple):
    """The message waits, then returns."""

    policy: Policy
    error_class: ErrorClass
    retry_count: int
    """Retries used, including this one unless it is free."""
    max_retries: int
    itinerary: Itinerary
    due_ms: int
    moved_from_ms: int | None = None
    """When it would be due without the policy's windows, if they moved it."""
    deferred_from_ms: int | None = None
    """When it would be due without the policy's budgets, if they deferred it."""
    budget: str | None = None
    """The budget that deferred it, in words."""
    tried: str | None = None
    """Why its error is given up, if it is one of the messages that are still tried."""


class Review(NamedTuple):
    """The message goes to review, where a person decides."""

    policy: Policy | None
    error_class: ErrorClass | None
    reason: str
    exhausted: bool = False
    budget: str | None = None
    """The budget that had no room for it, in words; None if that is not the reason."""
    given_up: bool = False
    """Whether the reason is that retries of its error (almost) never succeed."""


class Skip(NamedTuple):
    """The message is not retried, and nobody needs to decide about it: the retry ends here, with its reason."""

    policy: Policy
    error_class: ErrorClass
    reason: str
    budget: str | None = None
    """As of a review."""


Decision = Schedule | Review | Skip


@dataclass(frozen=True, slots=True)
class Rulebook:
    """The rules for decisions: the policies in order, the ladder, and the tiers that exist."""

    policies: tuple[Policy, ...]
    ladder: Ladder
    tiers: frozenset[int]
    """Those that policies without a lane share."""
    lane_tiers: frozenset[tuple[str, int]] = frozenset()
    """Those of lanes."""
    _policies: dict[tuple[str, str | None, str | None], Policy | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _ways: dict[tuple[int, int | None, str | None], Itinerary] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _by_lane: dict[str, frozenset[int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _openings: dict[str, Opening] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cached results: there are few queues and delays, and many messages."""

    @property
    def asks(self) -> bool:
        """Whether any policy asks about eligibility before a retry is scheduled."""
        return any(
            policy.eligibility is not None and policy.eligibility.asks_when_scheduled for policy in self.policies
        )

    @property
    def checks(self) -> dict[Check, Policy]:
        """The checks of messages that are due."""
        return {policy.check: policy for policy in self.policies if policy.check is not None}

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that policies name, in alphabetical order."""
        return tuple(sorted({policy.lane for policy in self.policies if policy.lane is not None}))

    def tiers_of(self, lane: str | None) -> frozenset[int]:
        """The tiers of a lane; without one, those that policies share."""
        if lane is None:
            return self.tiers
        if lane not in self._by_lane:
            found = frozenset(ms for name, ms in self.lane_tiers if name == lane)
            return _remember(self._by_lane, lane, found)
        return self._by_lane[lane]

    @property
    def learns(self) -> bool:
        """Whether any policy decides from history."""
        return any(policy.adaptive is not None for policy in self.policies)

    @property
    def charges(self) -> bool:
        """Whether any policy has a budget."""
        return any(policy.budgets for policy in self.policies)

    def policy_for(self, failure: Failure) -> Policy | None:
        """The first policy that matches."""
        whom = (failure.queue, failure.priority, failure.job_type)
        if whom not in self._policies:
            found = next((policy for policy in self.policies if policy.match.fits(*whom)), None)
            return _remember(self._policies, whom, found)
        return self._policies[whom]

    def policies_of_queue(self, queue: str) -> list[Policy]:
        """Every policy that can apply to messages of this queue: up to the first that applies to all of them."""
        found: list[Policy] = []
        for policy in self.policies:
            if fnmatchcase(queue, policy.match.queue):
                found.append(policy)
                if policy.match.priority is None and policy.match.job_type is None:
                    break
        return found

    def way(self, delay_ms: int, base_ms: int | None, lane: str | None = None) -> Itinerary:
        """The itinerary for a delay; `base_ms` is the part of it that may have its own tier."""
        asked = (delay_ms, base_ms, lane)
        if asked not in self._ways:
            found = itinerary(self.ladder, delay_ms, self.tiers_of(lane), base_ms, lane)
            return _remember(self._ways, asked, found)
        return self._ways[asked]

    def opening(self, policy: Policy, at_ms: int) -> Opening | None:
        """The current or next opening of the policy's windows."""
        known = self._openings.get(policy.name)
        if known is not None and known.tells(at_ms):
            return known
        found = next_opening(policy.windows, at_ms)
        return found if found is None else _remember(self._openings, policy.name, found)


def _remember(memory: dict[K, V], key: K, value: V) -> V:
    """Cache a result. Normal traffic has few keys; the limit keeps abnormal traffic from filling the memory."""
    if len(memory) >= MOST_REMEMBERED:
        memory.clear()
    memory[key] = value
    return value


def decide(failure: Failure, rules: Rulebook, now_ms: int, draw: float, caps: Caps = NO_CAPS) -> Schedule | Review:
    """Check the error class, the retry count, the delay and the limits, in that order. `draw` is in [0, 1). `caps` are
    the most retries of some owners.
    """
    policy = rules.policy_for(failure)
    if policy is None:
        return Review(None, failure.error_class, f"no policy matches queue {failure.queue!r}")
    error_class = _error_class(failure, policy)
    if error_class is ErrorClass.FINAL:
        return Review(policy, error_class, "the error is final: it is not worth a retry")
    imported = failure.import_due_ms is not None
    free = imported or (error_class is ErrorClass.RATE_LIMITED and hint_of(failure, now_ms) is not None)
    most = _most_retries(failure, policy, caps.of(failure.owner, policy.name))
    if not free and failure.retry_count >= most:
        return Review(policy, error_class, f"exhausted: {failure.retry_count} of {most} retries spent", exhausted=True)
    if failure.round >= policy.max_rounds:
        return Review(policy, error_class, f"exhausted: {failure.round} rounds made, the most allowed", exhausted=True)
    try:
        asked = _way(failure, policy, rules, now_ms, draw, free=free)
        way = _within_windows(asked, policy, rules, now_ms, draw) if policy.windows else asked
    except DelayTooLongError as too_long:
        return Review(policy, error_class, str(too_long))
    due_ms = now_ms + way.delay_ms
    if _too_old(failure, policy, now_ms, due_ms):
        age = humanise(policy.max_age or 0)
        return Review(policy, error_class, f"exhausted: due later than {age} after its first failure", exhausted=True)
    moved_from = None if way is asked else now_ms + asked.delay_ms
    return Schedule(policy, error_class, failure.retry_count + (not free), most, way, due_ms, moved_from)


def by_history(
    decision: Schedule, failure: Failure, given_up: ErrorsGivenUp, now_ms: int, draw: float
) -> Schedule | Review:
    """Review instead of a retry, if the message's error is given up and the message is not one of those that are still
    tried. `draw` is in [0, 1), and the same for all failures of a message. A rate limit that says how long to wait is
    not given up, nor is an import, which was decided before.
    """
    policy, is_free = decision.policy, decision.retry_count == failure.retry_count
    if policy.adaptive is None or is_free or failure.import_due_ms is not None:
        return decision
    mark = fingerprint(failure.error_type, failure.error_reason)
    reason = given_up.reason(failure.queue, policy.name, mark, now_ms)
    if reason is None:
        return decision
    if draw < policy.adaptive.still_tried:
        return decision._replace(tried=reason)
    return Review(policy, decision.error_class, reason, given_up=True)


def _error_class(failure: Failure, policy: Policy) -> ErrorClass:
    """That of the request, else that of the policy's rules. Whether an import is worth a retry was decided before."""
    if failure.error_class is not None:
        return failure.error_class
    if failure.import_due_ms is not None:
        return ErrorClass.RETRYABLE
    return policy.classify(failure.error_type, failure.error_reason)


def _most_retries(failure: Failure, policy: Policy, cap: int | None) -> int:
    most = policy.max_retries if failure.max_retries is None else min(failure.max_retries, policy.ceiling)
    return most if cap is None else min(most, cap)


def latest_due(failure: Failure, policy: Policy, now_ms: int) -> int:
    """The latest moment at which it may come due: by `max_age`, and by the longest delay."""
    longest = now_ms + LONGEST_DELAY
    if policy.max_age is None:
        return longest
    return min(longest, _since(failure, now_ms) + policy.max_age)


def postponed(decision: Schedule, due_ms: int, rules: Rulebook, now_ms: int) -> Schedule:
    """The same, due at another moment: never before it, and less than a granule of the ladder later."""
    lane = decision.policy.lane
    way = itinerary(rules.ladder, max(0, due_ms - now_ms), rules.tiers_of(lane), lane=lane)
    return decision._replace(itinerary=way, due_ms=now_ms + way.delay_ms)


def hint_of(failure: Failure, now_ms: int) -> int | None:
    """The wait that the request asks for, or None: the longer of `retry_after_ms` and `next_retry_at_ms`.

    A time in the past asks for nothing; otherwise a rate limit without a wait would loop without ever using an attempt.
    """
    asked = failure.retry_after_ms or 0
    if failure.next_retry_at_ms is not None:
        asked = max(asked, failure.next_retry_at_ms - now_ms)
    return asked if asked > 0 else None


def _way(failure: Failure, policy: Policy, rules: Rulebook, now_ms: int, draw: float, *, free: bool) -> Itinerary:
    """A hint is the minimum for the backoff; for a rate limit it replaces the backoff. Jitter is added to either.

    An import has a due time already.
    """
    lane = policy.lane
    if failure.import_due_ms is not None:
        left = max(failure.import_due_ms - now_ms, hint_of(failure, now_ms) or 0, 0)
        return itinerary(rules.ladder, left, rules.tiers_of(lane), lane=lane)
    base = policy.delay(failure.retry_count)
    hint = hint_of(failure, now_ms)
    wait = base if hint is None else hint if free else max(base, hint)
    # Whether a hint close to the maximum is accepted must not depend on the jitter draw.
    most_jitter = min(policy.longest_jitter(wait), max(0, LONGEST_DELAY - wait))
    jitter = rules.ladder.jitter(most_jitter, draw)
    return rules.way(wait + jitter, wait if wait in rules.tiers_of(lane) else None, lane)


def _within_windows(way: Itinerary, policy: Policy, rules: Rulebook, now_ms: int, draw: float) -> Itinerary:
    """The itinerary, or a longer one to the next opening of the policy's windows, plus the spread."""
    due_ms, ladder = now_ms + way.delay_ms, rules.ladder
    found = rules.opening(policy, due_ms)
    if found is None:
        raise DelayTooLongError(f"The policy's windows do not open within {HORIZON} days after the due time.")
    if found.opens <= due_ms:
        return way
    most = found.spread(policy.windows, ladder.granularity_ms)
    # Not the draw itself: what the jitter moves past a closing would all have a high one.
    spread = ladder.jitter(most, draw * SPREAD_DIGITS % 1)
    return itinerary(ladder, found.opens + spread - now_ms, rules.tiers_of(policy.lane), lane=policy.lane)


def _too_old(failure: Failure, policy: Policy, now_ms: int, due_ms: int) -> bool:
    """Whether a message exceeds `max_age`. A first failure in the future (a wrong clock) must not extend it."""
    if policy.max_age is None:
        return False
    return due_ms - _since(failure, now_ms) > policy.max_age


def _since(failure: Failure, now_ms: int) -> int:
    return now_ms if failure.first_failed_ms is None else min(failure.first_failed_ms, now_ms)

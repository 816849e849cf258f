"""What other policies would have done to the messages of the history. Pure.

A message's history says when it was tried and how that ended. A replay decides anew, with `core.decide`, when it would
have been tried, and asks for each such moment whether the attempt would have succeeded:

* Up to the last attempt that failed: no. From the first one that succeeded: yes. Both are known, if an error that has
  passed stays away.
* Between the two: nobody knows. The estimate is the share of that time which had gone by.
* After the last attempt of a message that never succeeded: nobody knows. The estimate is how often attempts of messages
  with the same error succeeded after about the same time.

So each figure has an estimate and two bounds: every attempt of unknown outcome fails, or every one succeeds.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha1
from typing import Any, NamedTuple

from tarry.core.decide import Failure, Review, Rulebook, Schedule, decide
from tarry.core.policy import ErrorClass, Policy
from tarry.core.states import Note, State

SLACK_MS = 1_000
"""Moments this close count as the same: an attempt is recorded a little after it was due."""

FEWEST_TRIALS = 10
"""Attempts with the same error, after about the same time, that an estimate needs; else it uses more of the history."""

MOST_ROUNDS = 5_000
"""Of one message in a replay."""

MOST_GROUPS = 20_000
MOST_QUEUES = 100
MINUTE_MS = 60_000
BINS_PER_DOUBLING = 8
"""Of the times to success: quantiles are exact to 9 %."""

LONGEST_BIN = 40 * BINS_PER_DOUBLING

EXHAUSTED = "exhausted:"
FINAL = "the error is final"


class Ended(StrEnum):
    """How the retries of a message ended, when they first did."""

    SUCCEEDED = "succeeded"
    EXHAUSTED = "exhausted"
    FINAL = "final"
    REVIEWED = "reviewed"
    """In review for another reason."""
    SKIPPED = "skipped"
    OPEN = "open"
    """Not yet, or the outcome of its last attempt is not known."""


class Failed(NamedTuple):
    """A failure of a message, as it was recorded."""

    at_ms: int
    error_class: ErrorClass | None
    """If its request said so; None: the rules of the policy decide."""
    hint_ms: int | None
    error_type: str | None
    error_reason: str | None


class ReplayAttempt(NamedTuple):
    """A return of a message to its queue."""

    due_ms: int
    """When it would have come without a pause, a budget or the like."""
    at_ms: int
    succeeded: bool | None
    """None if nobody knows."""
    lasted_ms: int
    """Until it failed or succeeded."""


class MessageHistory(NamedTuple):
    """What is known about one message."""

    failure: Failure
    """What decisions need, besides what changes from failure to failure."""
    group: str
    """Its fingerprint."""
    failures: tuple[Failed, ...]
    attempts: tuple[ReplayAttempt, ...]
    """All of them, also those after a redrive."""
    made: int
    """How many of the attempts came before the first end; only these are counted."""
    draws: tuple[float, ...]
    """What chance gave to each decision."""
    ended: Ended
    ended_ms: int


class ReplayStep(NamedTuple):
    """A step of the history, as far as a replay needs it."""

    round: int
    state: str
    at_ms: int
    reason: str | None
    detail: dict[str, Any]


class MessageRow(NamedTuple):
    """A retry with its steps, as it is read."""

    retry_id: str
    queue: str
    priority: str | None
    job_type: str | None
    owner: str | None
    max_retries: int | None
    error_type: str | None
    error_reason: str | None
    fingerprint: str | None
    first_failed_ms: int
    steps: Sequence[ReplayStep]


KnownErrors = Callable[[str, str | None], tuple[str | None, str | None] | None]
"""The type and reason that a fingerprint stands for, in a queue; None if they are not known."""


def message_history(row: MessageRow, rules: Rulebook, known: KnownErrors) -> MessageHistory | None:
    """What is known about a message; None if an operator or a repair changed its course, or its beginning is missing.

    `rules` are those that applied: they tell what a request said itself.
    """
    rounds = _rounds(row)
    if rounds is None or not rounds:
        return None
    policies = {policy.name: policy for policy in rules.policies}
    failures: list[Failed] = []
    attempts: list[ReplayAttempt] = []
    draws: list[float] = []
    ended, ended_ms, made = Ended.OPEN, 0, -1
    for place, one in enumerate(rounds):
        following = rounds[place + 1] if place + 1 < len(rounds) else None
        failures.append(_failed(one, row, policies, known))
        draws.append(_draw(one, row, policies, rules))
        if one.end is not None:
            if made < 0:
                ended, ended_ms, made = _ended(one.end), one.decided_ms, len(attempts)
        elif one.skipped_ms is not None:
            if made < 0:
                ended, ended_ms, made = Ended.SKIPPED, one.skipped_ms, len(attempts)
        elif one.returned_ms is not None:
            attempts.append(_attempt(one, following))
            if made < 0 and following is None and one.succeeded_ms is not None:
                ended, ended_ms, made = Ended.SUCCEEDED, one.succeeded_ms, len(attempts)
    first = min(row.first_failed_ms, rounds[0].decided_ms)
    policy = policies.get(rounds[0].policy or "")
    asked = row.max_retries if policy is not None and row.max_retries not in (None, policy.max_retries) else None
    failure = Failure(
        row.queue,
        first_failed_ms=first,
        max_retries=asked,
        priority=row.priority,
        job_type=row.job_type,
        owner=row.owner,
    )
    return MessageHistory(
        failure,
        rounds[0].fingerprint or row.fingerprint or "",
        tuple(failures),
        tuple(attempts),
        len(attempts) if made < 0 else made,
        tuple(draws),
        ended,
        ended_ms,
    )


@dataclass(slots=True)
class _Round:
    decided_ms: int
    policy: str | None
    error_class: str | None
    fingerprint: str | None
    hint_ms: int | None
    delay_ms: int | None = None
    due_ms: int | None = None
    attempt: int | None = None
    end: str | None = None
    """Why it went to review."""
    skipped_ms: int | None = None
    returned_ms: int | None = None
    succeeded_ms: int | None = None


def _rounds(row: MessageRow) -> list[_Round] | None:
    """Each decision about the message, with what followed; None if somebody intervened before its first end."""
    found: list[_Round] = []
    by_round: dict[int, _Round] = {}
    for step in row.steps:
        current = by_round.get(step.round)
        if _is_decision(step, current):
            by_round[step.round] = _decided(step)
            found.append(by_round[step.round])
        elif step.state in _INTERVENED:
            if not any(one.end is not None for one in found):
                return None
        elif current is not None:
            _follow(current, step)
        if step.state == State.SCHEDULED and (step.reason or "").startswith("retry now"):
            return None
    # The steps of the first round may have been deleted.
    return found if found and row.steps[0].round <= 1 else None


_INTERVENED = frozenset({State.CANCELLED, State.DISCARDED, Note.RECOVERED, Note.STUCK})


def _is_decision(step: ReplayStep, current: _Round | None) -> bool:
    """A redrive is one too. What happens to a message that waits is none."""
    if step.state == State.SCHEDULED:
        return True
    return step.state in (State.IN_REVIEW, State.SKIPPED) and (current is None or current.returned_ms is not None)


def _decided(step: ReplayStep) -> _Round:
    detail = step.detail
    about = (detail.get("policy"), detail.get("class"), detail.get("fingerprint"), detail.get("hint_ms"))
    if step.state != State.SCHEDULED:
        found = _Round(step.at_ms, *about)
        found.end = step.reason or "" if step.state == State.IN_REVIEW else None
        found.skipped_ms = step.at_ms if step.state == State.SKIPPED else None
        return found
    due, delay = detail.get("due_ms"), detail.get("delay_ms")
    found = _Round(step.at_ms if due is None else due - (delay or 0), *about)
    found.due_ms = detail.get("deferred_from_ms", due)
    found.delay_ms = None if "deferred_from_ms" in detail else delay
    found.attempt = detail.get("attempt")
    return found


def _follow(current: _Round, step: ReplayStep) -> None:
    match step.state:
        case State.SKIPPED:
            current.skipped_ms = step.at_ms
        case State.RETURNED:
            current.returned_ms = step.at_ms
        case State.SUCCEEDED:
            at = step.detail.get("at_ms")
            current.succeeded_ms = at if at is not None else current.returned_ms or step.at_ms


def _attempt(one: _Round, following: _Round | None) -> ReplayAttempt:
    at = one.returned_ms or 0
    due = at if one.due_ms is None else min(one.due_ms, at)
    if following is not None:
        return ReplayAttempt(due, at, succeeded=False, lasted_ms=max(0, following.decided_ms - at))
    succeeded = True if one.succeeded_ms is not None else None
    return ReplayAttempt(due, at, succeeded, max(0, (one.succeeded_ms or at) - at))


def _failed(one: _Round, row: MessageRow, policies: dict[str, Policy], known: KnownErrors) -> Failed:
    """The class counts as given by the request if the rules of the policy would have given another."""
    error = (row.error_type, row.error_reason) if one.fingerprint in (None, row.fingerprint) else None
    error = error or known(row.queue, one.fingerprint)
    error_class = ErrorClass(one.error_class) if one.error_class is not None else None
    policy = policies.get(one.policy or "")
    if error is None:
        return Failed(one.decided_ms, error_class, one.hint_ms, None, None)
    by_rules = policy is not None and policy.classify(*error) is error_class
    return Failed(one.decided_ms, None if by_rules else error_class, one.hint_ms, *error)


def _draw(one: _Round, row: MessageRow, policies: dict[str, Policy], rules: Rulebook) -> float:
    """The draw that gives the delay that was recorded; a fixed one where no draw does."""
    policy, granule = policies.get(one.policy or ""), rules.ladder.granularity_ms
    if policy is not None and one.delay_ms is not None and one.attempt:
        free = one.hint_ms is not None and one.error_class == ErrorClass.RATE_LIMITED
        base = policy.delay(one.attempt if free else one.attempt - 1)
        wait = one.hint_ms if free and one.hint_ms else max(base, one.hint_ms or 0)
        most, left = policy.longest_jitter(wait) // granule, (one.delay_ms - wait) // granule
        if 0 <= left <= most:
            return (left + 0.5) / (most + 1)
    digest = sha1(f"{row.retry_id}{one.decided_ms}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4]) / 2**32


def _ended(reason: str) -> Ended:
    if reason.startswith(EXHAUSTED):
        return Ended.EXHAUSTED
    return Ended.FINAL if reason.startswith(FINAL) else Ended.REVIEWED


@dataclass(slots=True)
class _Trials:
    number: int = 0
    succeeded: int = 0
    waited_ms: int = 0
    """The sum of the times since the failure before."""

    def chance(self, wait_ms: int) -> float:
        """That an attempt succeeds this long after the last failure."""
        if not self.succeeded or not self.waited_ms:
            return self.succeeded / self.number
        failed = 1 - min(self.succeeded / self.number, 0.999)
        return float(1 - failed ** (wait_ms * self.number / self.waited_ms))


@dataclass(slots=True)
class SuccessRates:
    """How often attempts succeeded, by policy, error and time since the first failure."""

    _trials: dict[tuple[str, str, int], _Trials] = field(default_factory=dict)

    def add(self, policy: str, message: MessageHistory) -> None:
        first = message.failure.first_failed_ms or 0
        before = message.failures[0].at_ms
        for one in message.attempts:
            if one.succeeded is None:
                continue
            for key in _groups(policy, message.group, one.at_ms - first):
                if key not in self._trials and len(self._trials) >= MOST_GROUPS:
                    continue
                found = self._trials.setdefault(key, _Trials())
                found.number += 1
                found.succeeded += one.succeeded
                found.waited_ms += max(1, one.at_ms - before)
            before = one.at_ms + one.lasted_ms

    def chance(self, policy: str, group: str, since_first_ms: int, wait_ms: int) -> float:
        """That an attempt succeeds, after a failure this long before it."""
        for key in _groups(policy, group, since_first_ms):
            found = self._trials.get(key)
            if found is not None and found.number >= FEWEST_TRIALS:
                return found.chance(wait_ms)
        return 0.0


def _groups(policy: str, group: str, since_first_ms: int) -> Iterator[tuple[str, str, int]]:
    """From the narrowest to the widest. Times count as the same up to a factor of two."""
    time = max(0, since_first_ms // 1_000).bit_length()
    yield policy, group, time
    yield policy, group, -1
    yield policy, "", time
    yield policy, "", -1


class Try(NamedTuple):
    """An attempt in a replay."""

    at_ms: int
    chance: float
    """That it succeeds, if all before it failed."""
    is_known: bool
    lasted_ms: int


class Course(NamedTuple):
    """What a policy would have done to a message: its attempts, and how it ends if all of them fail."""

    tries: tuple[Try, ...]
    ended: Ended


def replay(message: MessageHistory, rules: Rulebook, rates: SuccessRates, policy: str, until_ms: int) -> Course:
    """Decides anew, from the first failure on. `policy` names the policy of `rates` that its error belongs to."""
    first = message.failures[0].at_ms
    tries: list[Try] = []
    now, lower, count = first, first, 0
    for number in range(MOST_ROUNDS):
        failed = _last_before(message.failures, now)
        failure = message.failure._replace(
            retry_count=count,
            round=number,
            error_class=failed.error_class,
            error_type=failed.error_type,
            error_reason=failed.error_reason,
            retry_after_ms=failed.hint_ms,
        )
        draw = message.draws[number] if number < len(message.draws) else message.draws[-1]
        decision = decide(failure, rules, now, draw)
        if isinstance(decision, Review):
            return Course(tuple(tries), _as_ended(decision))
        if _is_over(message, now):
            return Course(tuple(tries), message.ended)
        at = _held_until(message, decision)
        if message.ended is Ended.SKIPPED and at > message.ended_ms + SLACK_MS:
            return Course(tuple(tries), Ended.SKIPPED)
        if at > until_ms:
            break
        found = _try(message, at, lower, rates, policy)
        if found is None:
            tries.append(Try(at, 0.0, is_known=True, lasted_ms=0))
            break
        tries.append(found)
        if found.chance >= 1:
            return Course(tuple(tries), Ended.SUCCEEDED)
        lower, now = max(lower, at), at + found.lasted_ms
        count = decision.retry_count
    return Course(tuple(tries), Ended.OPEN)


def _as_ended(decision: Review) -> Ended:
    if decision.exhausted:
        return Ended.EXHAUSTED
    return Ended.FINAL if decision.error_class is ErrorClass.FINAL else Ended.REVIEWED


def _is_over(message: MessageHistory, now_ms: int) -> bool:
    """What is not decided here (an unreachable destination, a budget, eligibility) is taken as it was."""
    taken = message.ended in (Ended.REVIEWED, Ended.SKIPPED)
    return taken and now_ms >= message.ended_ms - SLACK_MS


def _held_until(message: MessageHistory, decision: Schedule) -> int:
    """When it returns: later than it is due if an attempt of the message that was due then was late."""
    for one in message.attempts:
        if one.due_ms - SLACK_MS <= decision.due_ms < one.at_ms:
            return one.at_ms
    return decision.due_ms


def _last_before(failures: Sequence[Failed], now_ms: int) -> Failed:
    place = bisect_left([one.at_ms for one in failures], now_ms + SLACK_MS)
    return failures[max(0, place - 1)]


def _try(message: MessageHistory, at_ms: int, lower_ms: int, rates: SuccessRates, policy: str) -> Try | None:
    """The attempt at this moment; None if it is one whose outcome is not known yet."""
    nearest = next((one for one in reversed(message.attempts) if one.at_ms <= at_ms + SLACK_MS), None)
    lasted = nearest.lasted_ms if nearest is not None else 0
    last_failed, succeeded = lower_ms, None
    for one in message.attempts:
        if one.succeeded is False:
            last_failed = max(last_failed, one.at_ms)
            if one.at_ms >= at_ms - SLACK_MS:
                return Try(at_ms, 0.0, is_known=True, lasted_ms=lasted)
        elif one.succeeded:
            succeeded = one.at_ms
        elif at_ms >= one.at_ms - SLACK_MS:
            return None
    if succeeded is not None:
        if at_ms >= succeeded - SLACK_MS:
            return Try(at_ms, 1.0, is_known=True, lasted_ms=lasted)
        share = (at_ms - last_failed) / max(1, succeeded - last_failed)
        return Try(at_ms, min(1 - 1e-9, max(0.0, share)), is_known=False, lasted_ms=lasted)
    since = at_ms - (message.failure.first_failed_ms or 0)
    chance = rates.chance(policy, message.group, since, max(0, at_ms - last_failed))
    return Try(at_ms, min(1 - 1e-9, chance), is_known=False, lasted_ms=lasted)


class Loads:
    """Attempts per minute at each destination."""

    def __init__(self, since_ms: int, until_ms: int, most_queues: int = MOST_QUEUES) -> None:
        self._since, self._most = since_ms, most_queues
        self._minutes = max(1, (until_ms - since_ms) // MINUTE_MS + 1)
        self.by_queue: dict[str, array[float]] = {}
        self.total = array("f", bytes(4 * self._minutes))

    def add(self, queue: str, at_ms: int, weight: float) -> None:
        place = min(max(0, (at_ms - self._since) // MINUTE_MS), self._minutes - 1)
        self.total[place] += weight
        if queue not in self.by_queue:
            if len(self.by_queue) >= self._most:
                return
            self.by_queue[queue] = array("f", bytes(4 * self._minutes))
        self.by_queue[queue][place] += weight

    def peak(self, queue: str | None = None) -> float:
        """The most attempts in one minute."""
        of = self.total if queue is None else self.by_queue.get(queue, array("f"))
        return max(of, default=0.0)


@dataclass(slots=True)
class ReplayTally:
    """The figures of messages, in one version of events."""

    attempts: float = 0.0
    ended: dict[Ended, float] = field(default_factory=lambda: dict.fromkeys(Ended, 0.0))
    success_ms: float = 0.0
    bins: array[float] = field(default_factory=lambda: array("d", bytes(8 * (LONGEST_BIN + 1))))

    def succeed(self, took_ms: int, weight: float) -> None:
        self.ended[Ended.SUCCEEDED] += weight
        self.success_ms += weight * took_ms
        self.bins[min(LONGEST_BIN, int(math.log2(max(1, took_ms)) * BINS_PER_DOUBLING))] += weight

    def quantile_ms(self, share: float) -> float | None:
        """The time within which this share of the successes came."""
        total = sum(self.bins)
        reached = 0.0
        for place, number in enumerate(self.bins):
            reached += number
            if number and reached >= share * total - 1e-9:
                return float(2 ** ((place + 0.5) / BINS_PER_DOUBLING))
        return None

    @property
    def mean_ms(self) -> float | None:
        succeeded = self.ended[Ended.SUCCEEDED]
        return self.success_ms / succeeded if succeeded > 1e-9 else None  # noqa: PLR2004 - zero, but for rounding


SCENARIOS: tuple[Callable[[Try], float], ...] = (
    lambda one: one.chance,
    lambda one: one.chance if one.is_known else 0.0,
    lambda one: one.chance if one.is_known else 1.0,
)
"""The estimate; every unknown attempt fails; every one succeeds."""


def add_course(
    course: Course, message: MessageHistory, tallies: Sequence[ReplayTally], load: Callable[[int, float], None]
) -> None:
    """Adds a replayed message to a tally for each of the scenarios; the load is that of the estimate."""
    first = message.failure.first_failed_ms or 0
    for tally, chance_of, is_estimate in zip(tallies, SCENARIOS, (True, False, False), strict=True):
        left = 1.0
        for one in course.tries:
            tally.attempts += left
            if is_estimate:
                load(one.at_ms, left)
            chance = chance_of(one)
            if chance:
                tally.succeed(one.at_ms + one.lasted_ms - first, left * chance)
                left *= 1 - chance
            if left <= 1e-9:  # noqa: PLR2004 - zero, but for rounding
                break
        else:
            tally.ended[course.ended] += left if course.ended is not Ended.SUCCEEDED else 0.0


def add_history(message: MessageHistory, tally: ReplayTally, load: Callable[[int, float], None]) -> None:
    """Adds a message as it was."""
    for one in message.attempts[: message.made]:
        tally.attempts += 1
        load(one.at_ms, 1.0)
    if message.ended is Ended.SUCCEEDED:
        tally.succeed(message.ended_ms - (message.failure.first_failed_ms or 0), 1.0)
    else:
        tally.ended[message.ended] += 1


class ReplayTotals:
    """The tallies of one policy, or of everything: as it was, by the policies as they are, and by the changed ones."""

    def __init__(self) -> None:
        self.messages = 0
        self.history = ReplayTally()
        self.current = (ReplayTally(), ReplayTally(), ReplayTally())
        self.changed = (ReplayTally(), ReplayTally(), ReplayTally())


class Replay:
    """Replays messages one after the other by two rulebooks, and keeps totals only."""

    def __init__(self, current: Rulebook, changed: Rulebook, since_ms: int, until_ms: int) -> None:
        self._current, self._changed, self._until = current, changed, until_ms
        self.rates = SuccessRates()
        self.by_policy: dict[str, ReplayTotals] = {}
        self.total = ReplayTotals()
        self.history, self.now, self.then = (Loads(since_ms, until_ms) for _ in range(3))
        self.policy_loads: dict[str, tuple[Loads, Loads, Loads]] = {}
        self._span = since_ms, until_ms

    def learn(self, messages: Iterable[MessageHistory]) -> None:
        """The first pass: how often attempts succeeded."""
        for message in messages:
            self.rates.add(self._policy(message), message)

    def add(self, messages: Iterable[MessageHistory]) -> None:
        """The second pass."""
        for message in messages:
            policy = self._policy(message)
            if policy not in self.policy_loads:
                self.policy_loads[policy] = (Loads(*self._span, 0), Loads(*self._span, 0), Loads(*self._span, 0))
            loads = self.policy_loads[policy]
            totals = (self.total, self.by_policy.setdefault(policy, ReplayTotals()))
            courses = [
                replay(message, rules, self.rates, policy, self._until) for rules in (self._current, self._changed)
            ]
            for place, each in enumerate(totals):
                each.messages += 1
                wanted = (self.history, self.now, self.then) if place == 0 else loads
                add_history(message, each.history, _into(wanted[0], message))
                add_course(courses[0], message, each.current, _into(wanted[1], message))
                add_course(courses[1], message, each.changed, _into(wanted[2], message))

    def _policy(self, message: MessageHistory) -> str:
        found = self._current.policy_for(message.failure)
        return "" if found is None else found.name


def _into(loads: Loads, message: MessageHistory) -> Callable[[int, float], None]:
    return lambda at_ms, weight: loads.add(message.failure.queue, at_ms, weight)

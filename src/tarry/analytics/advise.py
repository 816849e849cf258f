"""What the statistics say about policies: retries that never help, delays that are too short or too long, caps that are
never reached. Pure.

Each piece of advice comes from many retries on several days, and from the bound of a confidence interval instead of the
share itself: few retries, or one outage, are no evidence.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from tarry.analytics.rollups import KnownError, Statistic
from tarry.core.durations import humanise
from tarry.core.fingerprint import varying
from tarry.core.json_types import DOCUMENTED
from tarry.core.policy import LONGEST_GLOB, ErrorClass, ErrorRule, Policy
from tarry.topology.policy_edit import written_policy
from tarry.topology.toml_file import toml_value

CONFIDENCE = 0.995
QUANTILE = 2.576
"""Of the normal distribution: a bound is on the wrong side of the truth in one of two hundred cases."""

USELESS = 0.02
"""Retries of which less than this share succeeds, by the upper bound, do not help."""

HELPFUL = 0.1
"""Retries of which more than this share succeeds, by the lower bound, help."""

NEARLY_ALL = 0.97
LONG_MS = 60_000
"""A first delay from here on can be too long."""

SHORTER = 4
"""Such a delay is divided by this."""

FEWEST_MESSAGES = 100
FEWEST_DAYS = 3
FEWEST_TIMES = 20
"""Successes after a retry whose mean time to success is compared with the delays."""

LONGEST_REASON = 150
"""Characters of an error's reason that a rule contains."""


class AdviceKind(StrEnum):
    """What can be better."""

    USELESS_RETRIES = "useless_retries"
    """Retries after an error (almost) never succeed."""
    TOO_SHORT = "delays_too_short"
    """Only the last retries succeed."""
    TOO_LONG = "delays_too_long"
    """Nearly every message succeeds at its first retry, and waits long for it."""
    UNUSED_CAP = "cap_never_reached"
    """The retries end before the delays reach the cap."""


class Bounds(NamedTuple):
    """A confidence interval of a share."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Other values for some keys of a policy, as TOML has them; the rest stays as it is."""

    __pydantic_config__ = DOCUMENTED

    policy: str
    was: dict[str, Any]
    """What the keys are now, with what the policy inherits; null: not set."""
    now: dict[str, Any]

    def toml(self) -> str:
        """The keys as lines of the policy's table. Entries of a list of tables have a line each."""
        lines = ["[[policy]]", f"name = {toml_value(self.policy)}"]
        for key, value in self.now.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                lines += [f"{key} = [", *(f"    {toml_value(one)}," for one in value), "]"]
            else:
                lines.append(f"{key} = {toml_value(value)}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that can be better, with its evidence and the change."""

    __pydantic_config__ = DOCUMENTED

    kind: AdviceKind
    policy: str
    what: str
    """What is so, and what to do, in a sentence."""
    evidence: list[str]
    retries: int
    """Retries whose outcome is known, that this is taken from."""
    succeeded: int
    """How many of them succeeded."""
    messages: int
    """At least so many messages."""
    days: int
    """Days (UTC) with such retries."""
    fingerprint: str | None = None
    """Of the error, if it is about one."""
    error_type: str | None = None
    example: str | None = None
    """The reason of one such error."""
    change: PolicyChange | None = None
    """null if no change of the policy does this exactly."""
    no_change: str | None = None
    """Why not."""
    toml: str | None = None
    """The change as a table to paste: keys that it does not have stay as they are."""


def advise(
    statistics: Iterable[Statistic], errors: Mapping[str, KnownError], policies: Sequence[Policy]
) -> list[Advice]:
    """Advice about these policies, from counts by day, policy, error and attempt."""
    counted = _counted(statistics)
    found: list[Advice] = []
    for policy in policies:
        groups = counted.get(policy.name, {})
        useless = {mark: one for mark, one in groups.items() if mark and _is_useless(one, policy, errors.get(mark))}
        found += (_useless(policy, mark, one, groups, errors) for mark, one in useless.items())
        rest = _Group()
        for mark, one in groups.items():
            if mark not in useless:
                rest.add_all(one)
        found += filter(None, (_too_short(policy, rest), _too_long(policy, rest), _unused_cap(policy, groups)))
    return found


def bounds(succeeded: int, number: int) -> Bounds:
    """The confidence interval (Wilson) of a share of which `succeeded` of `number` were seen."""
    if not number:
        return Bounds(0.0, 1.0)
    share, squared = succeeded / number, QUANTILE**2
    middle = share + squared / (2 * number)
    width = QUANTILE * math.sqrt(share * (1 - share) / number + squared / (4 * number**2))
    low, high = ((middle + sign * width) / (1 + squared / number) for sign in (-1, 1))
    return Bounds(low if succeeded else 0.0, high if succeeded < number else 1.0)


@dataclass(slots=True)
class _Outcomes:
    """Of retries with the same number."""

    scheduled: int = 0
    succeeded: int = 0
    failed: int = 0
    success_ms: int = 0

    @property
    def known(self) -> int:
        return self.succeeded + self.failed


@dataclass(slots=True)
class _Group:
    """The retries of a policy after an error, or after several."""

    by_attempt: dict[int, _Outcomes] = field(default_factory=lambda: defaultdict(_Outcomes))
    days: set[datetime] = field(default_factory=set)

    def add(self, one: Statistic) -> None:
        found = self.by_attempt[one.attempt or 0]
        found.scheduled += one.counts.scheduled
        found.succeeded += one.counts.succeeded
        found.failed += one.counts.failed
        found.success_ms += one.counts.success_ms
        if one.counts.outcomes and one.starts is not None:
            self.days.add(one.starts)

    def add_all(self, other: _Group) -> None:
        for attempt, counts in other.by_attempt.items():
            found = self.by_attempt[attempt]
            found.scheduled += counts.scheduled
            found.succeeded += counts.succeeded
            found.failed += counts.failed
            found.success_ms += counts.success_ms
        self.days |= other.days

    def outcomes(self, first: int = 1, last: float = math.inf) -> _Outcomes:
        """Of the retries with these numbers together."""
        some = [counts for attempt, counts in self.by_attempt.items() if first <= attempt <= last]
        return _Outcomes(
            sum(one.scheduled for one in some),
            sum(one.succeeded for one in some),
            sum(one.failed for one in some),
            sum(one.success_ms for one in some),
        )

    @property
    def messages(self) -> int:
        """At least so many: a message has one retry of each number."""
        return max((counts.scheduled for attempt, counts in self.by_attempt.items() if attempt), default=0)

    @property
    def is_evidence(self) -> bool:
        return self.messages >= FEWEST_MESSAGES and len(self.days) >= FEWEST_DAYS


def _counted(statistics: Iterable[Statistic]) -> dict[str, dict[str, _Group]]:
    """By policy and fingerprint. What has no row of its own has no fingerprint either."""
    found: dict[str, dict[str, _Group]] = defaultdict(lambda: defaultdict(_Group))
    for one in statistics:
        found[one.policy or ""]["" if one.other else one.error or ""].add(one)
    return found


def _is_useless(group: _Group, policy: Policy, error: KnownError | None) -> bool:
    """Rate limits pass by themselves. An error that is final by now was not when these retries were scheduled."""
    total = group.outcomes()
    if not group.is_evidence or bounds(total.succeeded, total.known).high >= USELESS:
        return False
    if error is None:
        return True
    by_rules = policy.classify(error.error_type, error.example)
    return by_rules is not ErrorClass.FINAL and error.error_class != ErrorClass.RATE_LIMITED


def _useless(
    policy: Policy, mark: str, group: _Group, groups: Mapping[str, _Group], errors: Mapping[str, KnownError]
) -> Advice:
    total, error = group.outcomes(), errors.get(mark)
    rule, problem = _final_rule(policy, mark, groups, errors)
    name = f"the error {mark}" if error is None else error.error_type or f"the error {mark}"
    high = bounds(total.succeeded, total.known).high
    change = None if rule is None else _change(policy, errors=(rule, *policy.errors))
    evidence = [f"{_at_least(group)}; {_confident(f'at most {high:.1%} would succeed')}"]
    if error is not None and error.example:
        evidence.append(f"the reason of one of them: {error.example}")
    what = f"{total.succeeded:,} of {total.known:,} retries after {name} succeeded: make it final"
    made = _advice(AdviceKind.USELESS_RETRIES, policy, group, what, evidence, change=change, no_change=problem)
    if error is None:
        return replace(made, fingerprint=mark)
    return replace(made, fingerprint=mark, error_type=error.error_type, example=error.example)


def _advice(
    kind: AdviceKind,
    policy: Policy,
    group: _Group,
    what: str,
    evidence: list[str],
    *,
    change: PolicyChange | None,
    no_change: str | None = None,
) -> Advice:
    total = group.outcomes()
    return Advice(
        kind,
        policy.name,
        what,
        evidence,
        retries=total.known,
        succeeded=total.succeeded,
        messages=group.messages,
        days=len(group.days),
        change=change,
        no_change=no_change,
        toml=None if change is None else change.toml(),
    )


def _final_rule(
    policy: Policy, mark: str, groups: Mapping[str, _Group], errors: Mapping[str, KnownError]
) -> tuple[ErrorRule | None, str | None]:
    """A rule that makes this error final and no other that the policy has had; or why there is none."""
    error = errors.get(mark)
    if error is None:
        return None, "Its type and reason are not known."
    if error.error_class is not None and policy.classify(error.error_type, error.example) != error.error_class:
        return None, "Its requests name the error class themselves: change it where they are made."
    reason = _glob(error.example or "")
    if len(reason) > LONGEST_GLOB or not (error.error_type or reason.strip("*")):
        return None, "No rule matches this error and no other."
    rule = ErrorRule.model_validate({"type": _escaped(error.error_type or "*"), "reason": reason, "class": "final"})
    others = [errors[one] for one in groups if one != mark and one in errors]
    if not rule.fits(error.error_type, error.example) or any(rule.fits(one.error_type, one.example) for one in others):
        return None, "A rule for this error would match others too: write one by hand."
    return rule, None


def _glob(example: str) -> str:
    """The reason with `*` for what differs between errors with one fingerprint: numbers, ids, and space."""
    pieces = varying(example[:LONGEST_REASON])
    glob = "*".join(_escaped(piece) for piece in pieces)
    return f"{glob}*" if len(example) > LONGEST_REASON and not glob.endswith("*") else glob


def _escaped(text: str) -> str:
    return text if text == "*" else "".join(f"[{one}]" if one in "*?[" else one for one in text)


def _too_short(policy: Policy, group: _Group) -> Advice | None:
    """Whether only the retries after some number of them succeed."""
    last = max((attempt for attempt, one in group.by_attempt.items() if one.known), default=0)
    early = [one for one in range(1, last) if _are_useless(group, one)]
    if not early or not group.is_evidence or not _fits_delays(policy, group):
        return None
    useless = max(early)
    before, after = group.outcomes(1, useless), group.outcomes(useless + 1)
    if bounds(after.succeeded, after.known).low < HELPFUL or policy.max_retries <= useless:
        return None
    first = humanise(sum(policy.delay(one) for one in range(useless + 1)))
    which = "the first retry never succeeds" if useless == 1 else f"the first {useless} retries never succeed"
    most = bounds(before.succeeded, before.known).high
    evidence = [
        f"up to retry {useless}, {before.succeeded:,} of {before.known:,} succeeded; "
        + _confident(f"at most {most:.1%} would"),
        f"of the later ones, {after.succeeded:,} of {after.known:,} did; {_at_least(group)}",
    ]
    what = f"{which}, or almost never, and later ones do: wait {first} before the first"
    return _advice(AdviceKind.TOO_SHORT, policy, group, what, evidence, change=_later(policy, useless))


def _are_useless(group: _Group, last: int) -> bool:
    """The retries up to this number, together."""
    some = group.outcomes(1, last)
    return bounds(some.succeeded, some.known).high < USELESS


def _later(policy: Policy, useless: int) -> PolicyChange:
    """Without these retries: the next one comes when it does now."""
    delays = [policy.delay(one) for one in range(policy.max_retries)]
    first, left = sum(delays[: useless + 1]), policy.max_retries - useless
    if policy.backoff is not None:
        changed = policy.backoff.model_copy(update={"base": first, "cap": max(first, policy.backoff.cap)})
        return _change(policy, backoff=changed, max_retries=left)
    rest = (policy.schedule or ())[useless + 1 :] or delays[-1:]
    return _change(policy, schedule=(first, *rest) if left > 1 else (first,), max_retries=left)


def _too_long(policy: Policy, group: _Group) -> Advice | None:
    """Whether nearly all messages succeed at the first retry, after a long delay."""
    first, delay = group.by_attempt.get(1, _Outcomes()), policy.delay(0) if policy.max_retries else 0
    low = bounds(first.succeeded, first.known).low
    if delay < LONG_MS or low < NEARLY_ALL or not group.is_evidence or not _fits_delays(policy, group):
        return None
    what = (
        f"nearly every message succeeds at its first retry, after {humanise(delay)}: "
        f"try it after {humanise(delay // SHORTER)}"
    )
    evidence = [
        f"{first.succeeded:,} of {first.known:,} first retries succeeded; {_confident(f'at least {low:.1%} would')}",
        f"{_at_least(group)}; whether a sooner retry would succeed is not known",
    ]
    change = _sooner(policy, delay)
    no_change = None if change is not None else "Its delays hardly grow: decide by hand."
    return _advice(AdviceKind.TOO_LONG, policy, group, what, evidence, change=change, no_change=no_change)


def _sooner(policy: Policy, delay: int) -> PolicyChange | None:
    """With more retries, so that the last one comes when it does now, or about then."""
    sooner = delay // SHORTER
    if policy.backoff is None:
        schedule = (sooner, delay - sooner, *(policy.schedule or ())[1:])
        if len(policy.schedule or ()) == 1 and policy.max_retries > 1:
            schedule = (*schedule, delay)
        return _change(policy, schedule=schedule, max_retries=policy.max_retries + 1)
    if policy.backoff.factor < 2:  # noqa: PLR2004 - it would take many more
        return None
    more = math.ceil(math.log(SHORTER, policy.backoff.factor))
    changed = policy.backoff.model_copy(update={"base": sooner})
    return _change(policy, backoff=changed, max_retries=policy.max_retries + more)


def _fits_delays(policy: Policy, group: _Group) -> bool:
    """Whether messages succeeded about when the policy, as it is now, returns them: otherwise the history is that of
    other delays, or the delays matter less than something else.
    """
    for attempt, one in group.by_attempt.items():
        if attempt and one.succeeded >= FEWEST_TIMES:
            expected = sum(policy.delay(number) for number in range(attempt))
            if not 0.8 * expected <= one.success_ms / one.succeeded <= 3 * expected + 5_000:
                return False
    return True


def _unused_cap(policy: Policy, groups: Mapping[str, _Group]) -> Advice | None:
    """Whether the last retry that a message can have comes before the cap."""
    group = _Group()
    for one in groups.values():
        group.add_all(one)
    if policy.backoff is None or not policy.ceiling or group.messages < FEWEST_MESSAGES:
        return None
    cap, longest = policy.backoff.cap, policy.delay(policy.ceiling - 1)
    if longest >= cap:
        return None
    what = f"its cap of {humanise(cap)} is never reached: the longest delay is {humanise(longest)}"
    evidence = [
        f"retry {policy.ceiling} is the last that a message can have, and waits {humanise(longest)}",
        "the change alters no delay; if messages are to wait longer, raise max_retries instead",
    ]
    change = _change(policy, backoff=policy.backoff.model_copy(update={"cap": longest}))
    return _advice(AdviceKind.UNUSED_CAP, policy, group, what, evidence, change=change)


def _change(policy: Policy, **now: object) -> PolicyChange:
    """With `max_retries_ceiling` if it would be too low."""
    most, ceiling = now.get("max_retries"), policy.max_retries_ceiling
    if isinstance(most, int) and ceiling is not None and ceiling < most:
        now["max_retries_ceiling"] = most
    changed = policy.model_copy(update=now)
    was, written = written_policy(policy), written_policy(changed)
    return PolicyChange(policy.name, {key: was[key] for key in now}, {key: written[key] for key in now})


def _at_least(group: _Group) -> str:
    days = f"{len(group.days)} days"
    return f"{group.messages:,} messages or more, on {days}"


def _confident(what: str) -> str:
    return f"with {CONFIDENCE:.1%} confidence, {what}"

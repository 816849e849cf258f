"""Decisions from history: which errors are given up, because their retries (almost) never succeed. Pure: the time, the
counts and the draw are arguments.

An error is judged by the outcomes of its retries, in one queue and under one policy. Messages that were not retried
have no outcome. Returns whose outcome is not known yet count as successes, and the rate that is compared is the highest
one that the evidence allows, with a confidence of 90 %: in doubt, the error is retried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha1
from typing import NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from tarry.core.duration_field import Duration
from tarry.core.durations import humanise
from tarry.core.model import Model, Whole
from tarry.core.share_field import Share, format_share

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

HIGHEST = 0.5
"""The most that `give_up_below` can be: an error most of whose retries succeed is not given up."""

Z_90 = 1.2816
"""The quantile of the normal distribution that nine of ten values are below."""


class Adaptive(Model):
    """When an error goes to review at once, because its retries (almost) never succeed."""

    give_up_below: Share = Field(
        0.01,
        description="An error is given up if fewer of its retries succeed, up to 50%; default: 1%.",
        json_schema_extra={"default": "1%"},
    )
    after: Whole = Field(
        200, ge=1, le=1_000_000, description="The fewest retries with a known outcome that are judged; default: 200."
    )
    lasting: Duration = Field(
        DAY_MS,
        le=30 * DAY_MS,
        description="For how long they must have failed: an outage that is shorter gives up nothing; default: 1d.",
    )
    within: Duration = Field(
        7 * DAY_MS,
        ge=HOUR_MS,
        le=90 * DAY_MS,
        description="What is longer ago does not count; default: 7d.",
    )
    still_tried: Share = Field(
        0.05,
        alias="try",
        description="The share of the messages with such an error that is retried all the same, so that a recovery is "
        "noticed; default: 5%. With 100% nothing is given up, and the list shows what would be.",
        json_schema_extra={"default": "5%"},
    )

    @field_validator("give_up_below")
    @classmethod
    def _succeeds_rarely(cls, share: float) -> float:
        if share > HIGHEST:
            raise ValueError(f"should be at most {format_share(HIGHEST)}: most retries of such an error succeed")
        return share

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.within < self.lasting:
            longest, given = humanise(self.within), humanise(self.lasting)
            raise ValueError(
                f"lasting {given} is longer than within {longest}, the time that counts: shorten it, or count longer"
            )
        return self

    def describe(self) -> str:
        """`below 1% of at least 200 retries in 7d, for 1d; 5% are still tried`."""
        lasting = f", for {humanise(self.lasting)}" if self.lasting else ""
        return (
            f"below {format_share(self.give_up_below)} of at least {self.after:,} retries in "
            f"{humanise(self.within)}{lasting}; {format_share(self.still_tried)} are still tried"
        )


class ErrorOutcomes(NamedTuple):
    """What became of the retries of one error in an hour or a day."""

    starts_ms: int
    ends_ms: int
    returned: int
    succeeded: int
    failed: int
    """Returned, and failed again."""

    @property
    def known(self) -> int:
        return self.succeeded + self.failed


class Evidence(NamedTuple):
    """What is known about the retries of one error."""

    succeeded: int
    failed: int
    unknown: int
    """Returns without an outcome yet."""
    since_ms: int
    """When the earliest hour or day begins."""

    @property
    def known(self) -> int:
        return self.succeeded + self.failed

    @property
    def highest_rate(self) -> float:
        """The highest success rate that the evidence allows: the upper end of Wilson's interval."""
        number = self.known + self.unknown
        if not number:
            return 1.0
        share, z2 = (self.succeeded + self.unknown) / number, Z_90**2
        spread = Z_90 * math.sqrt(share * (1 - share) / number + z2 / (4 * number**2))
        return (share + z2 / (2 * number) + spread) / (1 + z2 / number)

    def describe(self) -> str:
        """`0 of 412 retries of this error succeeded`."""
        return f"{self.succeeded:,} of {self.known:,} retries of this error succeeded"


class AdaptiveFinding(StrEnum):
    """What the outcomes of an error say."""

    GIVEN_UP = "given up"
    TOO_FEW = "too few"
    TOO_SHORT = "too short"
    SUCCEEDS = "succeeds"


class Judgement(NamedTuple):
    """What the outcomes of an error say, and those that say it."""

    finding: AdaptiveFinding
    evidence: Evidence
    balanced: Evidence | None = None
    """The same without what an hour or day has more than others."""

    @property
    def highest_rate(self) -> float:
        """The highest success rate that all of it allows."""
        return max(one.highest_rate for one in (self.evidence, self.balanced) if one is not None)

    def describe(self, rule: Adaptive) -> str:
        """Why it is given up, or not."""
        evidence = self.evidence
        match self.finding:
            case AdaptiveFinding.GIVEN_UP:
                return reason_of(rule, evidence)
            case AdaptiveFinding.TOO_FEW:
                return f"not given up: {evidence.known:,} of the {rule.after:,} outcomes are known that it takes"
            case AdaptiveFinding.TOO_SHORT:
                apart = humanise(rule.lasting)
                return (
                    f"not given up: {evidence.describe()}, but too few of them are {apart} apart: it may be an outage"
                )
            case AdaptiveFinding.SUCCEEDS:
                unknown = f", {evidence.unknown:,} have no outcome yet" if evidence.unknown else ""
                apart = " in ordinary hours" if self.highest_rate > evidence.highest_rate else ""
                return (
                    f"not given up: {evidence.describe()}{unknown}, so up to {self.highest_rate:.2%} may succeed"
                    f"{apart}, which is not below {format_share(rule.give_up_below)}"
                )


def reason_of(rule: Adaptive, evidence: Evidence) -> str:
    """The reason of a review."""
    return f"given up: {evidence.describe()} (below {format_share(rule.give_up_below)})"


def judge(rule: Adaptive, outcomes: Sequence[ErrorOutcomes]) -> Judgement:
    """Whether an error is given up. `outcomes` are those of its time that counts, the latest first.

    The latest outcomes must say so, as many as `after`, and so must those of the time `lasting`. So the first successes
    after a recovery end it, however much has failed before.
    """
    unknown = max(0, sum(one.returned - one.known for one in outcomes))
    latest = _taken(outcomes, rule.after)
    if latest is None:
        return Judgement(AdaptiveFinding.TOO_FEW, _total(outcomes, unknown))
    evidence = _total(outcomes[:latest], unknown)
    if evidence.highest_rate >= rule.give_up_below:
        return Judgement(AdaptiveFinding.SUCCEEDS, evidence)
    if not rule.lasting:
        return Judgement(AdaptiveFinding.GIVEN_UP, evidence)
    reached = _lasting(rule, outcomes)
    if reached is None:
        return Judgement(AdaptiveFinding.TOO_SHORT, _total(outcomes, unknown))
    found = Judgement(
        AdaptiveFinding.GIVEN_UP, _total(outcomes[:reached], unknown), _balanced(outcomes[:reached], rule.after)
    )
    return found if found.highest_rate < rule.give_up_below else found._replace(finding=AdaptiveFinding.SUCCEEDS)


def _taken(outcomes: Sequence[ErrorOutcomes], number: int) -> int | None:
    """The place after the latest outcomes, so many as are known; None if there are not so many."""
    known = 0
    for place, one in enumerate(outcomes, 1):
        known += one.known
        if known >= number:
            return place
    return None


def _lasting(rule: Adaptive, outcomes: Sequence[ErrorOutcomes]) -> int | None:
    """The place after the latest outcomes of which half of `after` are older than another half by `lasting`; None if
    there are none. So the half, at least, is from before or after any outage that is shorter.
    """
    half = math.ceil(rule.after / 2)
    later = _taken(outcomes, half)
    if later is None:
        return None
    before = min(one.starts_ms for one in outcomes[:later]) - rule.lasting
    first = next((place for place, one in enumerate(outcomes) if one.ends_ms <= before), len(outcomes))
    earlier = _taken(outcomes[first:], half)
    return None if earlier is None else first + earlier


def _balanced(outcomes: Sequence[ErrorOutcomes], most: int) -> Evidence:
    """With as many outcomes of each hour or day as `most`: in an outage, more fail than succeed in days without one."""
    shares = [min(1.0, most / one.known) if one.known else 0.0 for one in outcomes]
    succeeded = sum(share * one.succeeded for share, one in zip(shares, outcomes, strict=True))
    failed = sum(share * one.failed for share, one in zip(shares, outcomes, strict=True))
    return Evidence(math.ceil(succeeded), math.ceil(failed), 0, 0)


def _total(outcomes: Sequence[ErrorOutcomes], unknown: int) -> Evidence:
    succeeded, failed = sum(one.succeeded for one in outcomes), sum(one.failed for one in outcomes)
    return Evidence(succeeded, failed, unknown, min((one.starts_ms for one in outcomes), default=0))


class ErrorKey(NamedTuple):
    """An error in one queue, under one policy."""

    queue: str
    policy: str
    fingerprint: str


class ErrorsGivenUp(NamedTuple):
    """The errors that are given up, with the reason of each."""

    reasons: Mapping[ErrorKey, str] = {}
    until_ms: int = 0
    """They do not apply after this moment: the statistics may have changed since."""

    def reason(self, queue: str, policy: str, fingerprint: str | None, now_ms: int) -> str | None:
        """Why this error is given up; None if it is not."""
        if fingerprint is None or not self.reasons or now_ms > self.until_ms:
            return None
        return self.reasons.get(ErrorKey(queue, policy, fingerprint))


NOTHING_GIVEN_UP = ErrorsGivenUp()


def draw_of(retry_id: str) -> float:
    """A number in [0, 1) that is the same for all failures of a message: it is still tried with all its retries, or
    not at all, also if a request is delivered again.
    """
    return int.from_bytes(sha1(retry_id.encode(), usedforsecurity=False).digest()[:4]) / 2**32

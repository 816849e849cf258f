"""What a policy says: whom it matches, how long to wait, how often, and which errors are worth it."""

from __future__ import annotations

import re
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from tarry.core.duration_field import Duration
from tarry.core.durations import format_duration, parse_duration
from tarry.core.globs import Effort, covers

MOST_RETRIES = 1_000
"""A count past this is a mistake, not a policy."""


class ErrorClass(StrEnum):
    """What kind of failure it was, which decides what happens next."""

    FINAL = "final"
    RETRYABLE = "retryable"
    RATE_LIMITED = "rate_limited"


class Deduplicate(StrEnum):
    """When two requests without tarry's headers speak of the same message, so that the second can be dropped."""

    CONTENT = "content"
    """Queue, message id and content agree."""
    MESSAGE_ID = "message_id"
    """Queue and message id agree, whatever the content is."""
    OFF = "off"
    """Never."""


def _parse_jitter(value: object) -> int | float:
    """`"1s"` → 1000 (milliseconds), `"30%"` → 0.3 (of the delay)."""
    if not (isinstance(value, str) and value.endswith("%")):
        return parse_duration(value)
    try:
        share = float(value[:-1]) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"`{value}`: use a duration as in 1s, or a share from 0% to 100%")
    return share


def _format_jitter(value: float) -> str:
    return format_duration(value) if isinstance(value, int) else f"{value * 100:g}%"


Jitter = Annotated[
    int | float,
    BeforeValidator(_parse_jitter),
    PlainSerializer(_format_jitter, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["1s", "30%"]}),
]


LONGEST_GLOB = 500
Glob = Annotated[str, StringConstraints(max_length=LONGEST_GLOB)]
"""A pattern with `*`, `?` and `[…]`. It is matched without going back, so a text made to match slowly finds nothing to
hold on to; only a pattern of many thousand characters would take long, and nobody writes one."""


class Model(BaseModel):
    """Unknown keys are mistakes: a typo must not silently be a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def folded(word: str) -> str:
    """A word of the contract as it is compared: `Rate-Limited` is `rate_limited`."""
    return word.lower().replace("-", "_")


@lru_cache
def _folded_glob(glob: str) -> str:
    """The hyphen of a range, as in `[a-c]`, stays."""
    return re.sub(r"\[[^\]]*\]|-", lambda found: found[0] if found[0] != "-" else "_", glob.lower())


class Match(Model):
    """Whom a policy is for; every part given must match."""

    queue: Glob = Field("*", description="Glob on the name of the queue the message failed in.")
    priority: Glob | None = Field(
        None,
        description="Glob on the request's `priority`, whatever its case; `-` equals `_`. Without one it is no match.",
    )
    job_type: Glob | None = Field(
        None, description="Glob on the request's `job_type`; a request without one is no match."
    )

    def fits(self, queue: str, priority: str | None, job_type: str | None) -> bool:
        """A priority is one whatever its case, and `-` is `_` in it."""
        return (
            fnmatchcase(queue, self.queue)
            and (
                self.priority is None
                or (priority is not None and fnmatchcase(folded(priority), _folded_glob(self.priority)))
            )
            and (self.job_type is None or (job_type is not None and fnmatchcase(job_type, self.job_type)))
        )

    def covers(self, other: Match, effort: Effort | None = None) -> bool:
        """Whether it provably matches everything that `other` matches."""

        def part(mine: str | None, theirs: str | None) -> bool:
            return mine is None or (theirs is not None and covers(mine, theirs, effort))

        return (
            part(self.queue, other.queue)
            and part(self.priority, other.priority)
            and part(self.job_type, other.job_type)
        )


class Backoff(Model):
    """Exponential delays: base × factorⁿ, never more than the cap."""

    base: Duration = Field(description="The delay before the first retry.")
    factor: float = Field(2.0, ge=1, le=1000, description="Each delay is this many times the one before.")
    cap: Duration = Field(description="No delay is longer than this, jitter aside.")

    @model_validator(mode="after")
    def _cap_holds_base(self) -> Self:
        if self.cap < self.base:
            raise ValueError(f"the cap {format_duration(self.cap)} is below the base {format_duration(self.base)}")
        return self

    def delay(self, retry_count: int) -> int:
        """Exponents past any cap would overflow a float; the cap is reached long before."""
        grown = self.base * self.factor ** min(retry_count, 64)
        return self.cap if grown >= self.cap else round(grown)


class ErrorRule(Model):
    """Errors that match belong to a class; the first rule that matches decides."""

    type: Glob = Field("*", description="Glob on the request's `error_type`.")
    reason: Glob = Field("*", description="Glob on the request's `error_reason`.")
    error_class: ErrorClass = Field(
        alias="class", description="The class of such errors: final, retryable or rate_limited."
    )

    def fits(self, error_type: str | None, reason: str | None) -> bool:
        return fnmatchcase(error_type or "", self.type) and fnmatchcase(reason or "", self.reason)


class Policy(Model):
    """How the retries of some messages go."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="Shown in logs, metrics and `tarry explain`.")
    description: str = Field("", description="One sentence for the reader of the file.")
    match: Match = Field(default_factory=Match, description="Whom it is for; the first matching policy wins.")
    schedule: tuple[Duration, ...] | None = Field(
        None, min_length=1, description="The delays, one after the other; the last one repeats."
    )
    backoff: Backoff | None = Field(None, description="Exponential delays, instead of an explicit schedule.")
    jitter: Jitter = Field(
        0, description="Added to each delay at random, up to this: a duration, or a share of the delay."
    )
    max_retries: int = Field(ge=0, le=MOST_RETRIES, description="Retries after the first failure, then review.")
    max_retries_ceiling: int | None = Field(
        None, ge=0, le=MOST_RETRIES, description="The most a request may ask for itself; default: max_retries."
    )
    errors: tuple[ErrorRule, ...] = Field((), description="How errors are classed when the request does not say so.")
    max_age: Duration | None = Field(
        None, description="No retry is scheduled to end later than this after the first failure."
    )
    max_rounds: int = Field(
        1_000, ge=1, le=1_000_000, description="Rounds in all, those included that spend no attempt; then review."
    )
    deduplicate: Deduplicate = Field(
        Deduplicate.CONTENT,
        description="When a request is dropped as a repeat of one that waits: queue, message id and `content` agree; "
        "queue and `message_id` do, which loses messages that share an id; or never (`off`).",
    )
    return_to: Literal["queue", "exchange"] = Field(
        "queue", description="Back to the queue it failed in, or anew through the exchange it came by."
    )
    keep_payload: bool = Field(
        True, description="Store the body in Postgres, so that it can be rebuilt after a lost broker."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.schedule is None) == (self.backoff is None):
            raise ValueError(
                "give either `schedule` (a list) or `backoff` (base, factor, cap), not both and not neither"
            )
        if self.max_retries_ceiling is not None and self.max_retries_ceiling < self.max_retries:
            raise ValueError(f"max_retries_ceiling {self.max_retries_ceiling} is below max_retries {self.max_retries}")
        return self

    @property
    def ceiling(self) -> int:
        return self.max_retries if self.max_retries_ceiling is None else self.max_retries_ceiling

    def delay(self, retry_count: int) -> int:
        """The delay in milliseconds after `retry_count` retries were spent, before jitter."""
        if self.backoff is not None:
            return self.backoff.delay(retry_count)
        schedule = self.schedule or ()
        return schedule[min(retry_count, len(schedule) - 1)]

    def longest_jitter(self, delay_ms: int) -> int:
        return int(self.jitter * delay_ms) if isinstance(self.jitter, float) else self.jitter

    def tiers(self) -> frozenset[int]:
        """Every delay that this policy can ask for: each is a queue on the broker."""
        return frozenset(self.delay(count) for count in range(max(1, self.ceiling)))

    def rule_for(self, error_type: str | None, reason: str | None) -> ErrorRule | None:
        return next((rule for rule in self.errors if rule.fits(error_type, reason)), None)

    def classify(self, error_type: str | None, reason: str | None) -> ErrorClass:
        rule = self.rule_for(error_type, reason)
        return ErrorClass.RETRYABLE if rule is None else rule.error_class

    def scaled(self, factor: float) -> Policy:
        """The same policy with every duration multiplied: a day's schedule in seconds, for tests."""

        def scale(ms: int) -> int:
            return max(1, round(ms * factor))

        changes: dict[str, object] = {}
        if self.schedule is not None:
            changes["schedule"] = tuple(scale(ms) for ms in self.schedule)
        if self.backoff is not None:
            backoff = {"base": scale(self.backoff.base), "cap": scale(self.backoff.cap)}
            changes["backoff"] = self.backoff.model_copy(update=backoff)
        if isinstance(self.jitter, int):
            changes["jitter"] = scale(self.jitter) if self.jitter else 0
        if self.max_age is not None:
            changes["max_age"] = scale(self.max_age)
        return self.model_copy(update=changes)

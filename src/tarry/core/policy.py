"""Policies: which messages they match, the delays, the number of retries, and which errors are retried."""

from __future__ import annotations

import re
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from tarry.core.adaptive import Adaptive
from tarry.core.breaker import SECOND_MS, Breaker
from tarry.core.budgets import SHORTEST_MS, Budget, Unit
from tarry.core.duration_field import Duration
from tarry.core.durations import format_duration, parse_duration
from tarry.core.eligibility import Eligibility
from tarry.core.globs import Effort, covers
from tarry.core.model import Model, Number, Whole, WrongKeyError
from tarry.core.names import LANE, Check
from tarry.core.windows import Window, longest_wait_ms

MOST_RETRIES = 1_000
"""The maximum number of retries in a policy."""

HIGHEST_PRIORITY = 255
"""Of an AMQP message: the property is one octet."""


class ErrorClass(StrEnum):
    """The class of a failure; it decides whether and how the message is retried."""

    FINAL = "final"
    RETRYABLE = "retryable"
    RATE_LIMITED = "rate_limited"


class Deduplicate(StrEnum):
    """When two requests without tarry's headers are for the same message, so that the second can be dropped."""

    CONTENT = "content"
    """Queue, message id and content agree."""
    MESSAGE_ID = "message_id"
    """Queue and message id agree; the content may differ."""
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
"""A pattern with `*`, `?` and `[…]`. It is matched without backtracking, so no text can make matching slow."""


def folded(word: str) -> str:
    """Normalises a word of the contract for comparison: `Rate-Limited` becomes `rate_limited`."""
    return word.lower().replace("-", "_")


@lru_cache
def _folded_glob(glob: str) -> str:
    """Normalises a glob; the hyphen of a range, as in `[a-c]`, is kept."""
    return re.sub(r"\[[^\]]*\]|-", lambda found: found[0] if found[0] != "-" else "_", glob.lower())


class Match(Model):
    """Which messages a policy applies to; every part that is given must match."""

    queue: Glob = Field("*", description="Glob on the name of the queue the message failed in.")
    priority: Glob | None = Field(
        None,
        description="Glob on the request's `priority`; ignores case, and `-` equals `_`. A request without one does "
        "not match.",
    )
    job_type: Glob | None = Field(
        None, description="Glob on the request's `job_type`; a request without one does not match."
    )

    def fits(self, queue: str, priority: str | None, job_type: str | None) -> bool:
        """Compares priorities without case; `-` equals `_`."""
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
    factor: Number = Field(2.0, ge=1, le=1000, description="Each delay is the previous one times this factor.")
    cap: Duration = Field(description="No delay is longer than this, jitter aside.")

    @model_validator(mode="after")
    def _cap_holds_base(self) -> Self:
        if self.cap < self.base:
            raise ValueError(f"the cap {format_duration(self.cap)} is below the base {format_duration(self.base)}")
        return self

    def delay(self, retry_count: int) -> int:
        """The delay in milliseconds. The exponent is limited: a larger one would overflow a float."""
        grown = self.base * self.factor ** min(retry_count, 64)
        return self.cap if grown >= self.cap else round(grown)


@lru_cache(maxsize=4_096)
def simple_name(error_type: str) -> str:
    """The name of an error without package, module or namespace, and without a text after it.

    `java.net.SocketTimeoutException: Read timed out` becomes `SocketTimeoutException`.
    """
    return re.split(r"[.$\\/\s]|::", error_type.partition(": ")[0].strip())[-1]


class ErrorRule(Model):
    """Assigns matching errors to a class; the first matching rule applies."""

    type: Glob = Field(
        "*",
        description="Glob on the request's `error_type`: on the whole of it, or on its name without package, module or "
        "namespace.",
    )
    reason: Glob = Field("*", description="Glob on the request's `error_reason`.")
    error_class: ErrorClass = Field(
        alias="class", description="The class of such errors: final, retryable or rate_limited."
    )

    def fits(self, error_type: str | None, reason: str | None) -> bool:
        given = error_type or ""
        fits = fnmatchcase(given, self.type) or fnmatchcase(simple_name(given), self.type)
        return fits and fnmatchcase(reason or "", self.reason)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _one_or_list(schema: dict[str, Any]) -> None:
    """Also allows a single table in place of the list."""
    array = {key: schema.pop(key) for key in ("type", "items", "default") if key in schema}
    schema["anyOf"] = [array["items"], {"type": "array", "items": array["items"]}]


class Policy(Model):
    """How some messages are retried."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="Shown in logs, metrics and `tarry explain`.")
    description: str = Field("", description="A description for readers of the file.")
    extends: str | None = Field(
        None,
        description="The policy or base whose values apply where this one has none. A loaded policy already has "
        "all of them.",
    )
    without: tuple[str, ...] = Field((), description="Keys that are not taken from the policy or base that it extends.")
    match: Match = Field(
        default_factory=Match, description="Which messages it applies to; the first matching policy wins."
    )
    schedule: tuple[Duration, ...] | None = Field(
        None, min_length=1, description="The delays, one after the other; the last one repeats."
    )
    backoff: Backoff | None = Field(None, description="Exponential delays, instead of an explicit schedule.")
    jitter: Jitter = Field(
        0, description="Added to each delay at random, up to this: a duration, or a share of the delay."
    )
    max_retries: Whole = Field(ge=0, le=MOST_RETRIES, description="Retries after the first failure, then review.")
    max_retries_ceiling: Whole | None = Field(
        None, ge=0, le=MOST_RETRIES, description="The most retries that a request may ask for; default: max_retries."
    )
    errors: tuple[ErrorRule, ...] = Field((), description="How errors are classified if the request does not do so.")
    max_age: Duration | None = Field(
        None, description="No retry is scheduled to end later than this after the first failure."
    )
    windows: Annotated[tuple[Window, ...], BeforeValidator(_as_list)] = Field(
        (),
        alias="window",
        json_schema_extra=_one_or_list,
        description="At which times messages may return; if there are several windows, all of them must be open.",
    )

    eligibility: Eligibility | None = Field(
        None,
        description="Whether a message is still wanted: an endpoint is asked before a retry is scheduled, or an "
        "endpoint or a consumer before it returns.",
    )

    budgets: Annotated[tuple[Budget, ...], BeforeValidator(_as_list)] = Field(
        (),
        alias="budget",
        json_schema_extra=_one_or_list,
        description="How many retries may come due in an hour, a day or a month; if there are several budgets, all of "
        "them must have room.",
    )
    cost: Whole = Field(1, ge=1, le=1_000_000, description="What one retry counts in a budget whose unit is cost.")

    max_rate: Whole | None = Field(
        None,
        ge=1,
        le=100_000,
        description="At most so many returns a second to each queue of the policy; the rest is held, in order. If "
        "several policies apply to a queue, the lowest counts for all its messages.",
    )

    breaker: Breaker | None = Field(
        None,
        description="When a queue of the policy gets no returns, because too many of them fail again. If several "
        "policies apply to a queue, the first with a breaker decides for all its messages.",
    )

    adaptive: Adaptive | None = Field(
        None,
        description="When an error goes to review at once, because the history says that its retries (almost) never "
        "succeed.",
    )

    max_rounds: Whole = Field(
        1_000, ge=1, le=1_000_000, description="Total rounds, including those that use no attempt; then review."
    )
    deduplicate: Deduplicate = Field(
        Deduplicate.CONTENT,
        description="When a request is dropped as a duplicate of a waiting one: queue, message id and `content` agree; "
        "queue and `message_id` agree, which loses messages that share an id; or never (`off`).",
    )
    return_to: Literal["queue", "exchange"] = Field(
        "queue", description="Return to the queue it failed in, or through the exchange it was published to."
    )
    lane: str | None = Field(
        None,
        pattern=rf"^{LANE}$",
        description="Tiers, a ladder and relays that only policies with the same lane share, so that no other returns "
        "are ahead of theirs.",
    )
    return_priority: Whole | None = Field(
        None,
        ge=0,
        le=HIGHEST_PRIORITY,
        description="The AMQP priority of a returning message; default: the message's own. The origin queue must "
        "support priorities.",
    )
    keep_payload: bool = Field(
        True, description="Store the body in Postgres, so that the message can be rebuilt if the broker loses it."
    )

    stuck_after: Duration | None = Field(
        None,
        ge=1,
        description="An attempt that its consumer reported as started is stuck after this long without an outcome; "
        "default: TARRY_STUCK_AFTER.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.schedule is None) == (self.backoff is None):
            raise ValueError("give either `schedule` (a list) or `backoff` (base, factor, cap), and not both")
        if self.max_retries_ceiling is not None and self.max_retries_ceiling < self.max_retries:
            raise WrongKeyError(
                f"max_retries_ceiling {self.max_retries_ceiling} is below max_retries {self.max_retries}",
                "max_retries_ceiling",
            )
        if self.max_rate is not None and self.return_to == "exchange":
            raise WrongKeyError(
                'max_rate limits the returns to a queue, and with return_to = "exchange" the queue is not known: '
                "remove one of them, or limit the exchange with `tarry throttle exchange:NAME`",
                "max_rate",
            )
        self._check_breaker()
        self._check_budgets()
        return self

    def _check_breaker(self) -> None:
        if self.breaker is None:
            return
        if self.return_to == "exchange":
            raise WrongKeyError(
                'a breaker holds the returns to a queue, and with return_to = "exchange" the queue is not known: '
                "remove one of them",
                "breaker",
            )
        if self.max_rate is not None and self.max_rate * self.breaker.within < self.breaker.of * SECOND_MS:
            most, within = self.max_rate * self.breaker.within // SECOND_MS, format_duration(self.breaker.within)
            raise WrongKeyError(
                f"it never opens: with max_rate {self.max_rate} at most {most} messages return within {within}, and it "
                f"needs {self.breaker.of}: lower `of` to {most} or less, or lengthen `within`",
                *("breaker", "of"),
            )

    def _check_budgets(self) -> None:
        for place, budget in enumerate(self.budgets):
            what, where = f"the budget of {budget.describe()}", ("budget", place)
            if any(budget.identity == other.identity for other in self.budgets[:place]):
                raise WrongKeyError(
                    f"{what} counts the same as an earlier one: keep the one with the lower limit", *where
                )
            if self.charge_of(budget) > budget.limit:
                problem = f"{what} has no room for one retry of cost {self.cost}: raise its limit"
                raise WrongKeyError(problem, *where, "limit")
            if budget.spread > SHORTEST_MS[budget.every]:
                most = format_duration(SHORTEST_MS[budget.every])
                problem = f"{what} has a spread that may be longer than its period: use at most {most}"
                raise WrongKeyError(problem, *where, "spread")

    @property
    def check(self) -> Check | None:
        """The check of its messages when they are due; None if nothing is asked then."""
        rule = self.eligibility
        return Check(self.name, rule.answer_within) if rule is not None and rule.asks_when_due else None

    @property
    def ceiling(self) -> int:
        return self.max_retries if self.max_retries_ceiling is None else self.max_retries_ceiling

    def charge_of(self, budget: Budget) -> int:
        """What one retry counts in this budget."""
        return self.cost if budget.unit is Unit.COST else 1

    def delay(self, retry_count: int) -> int:
        """The delay in milliseconds after `retry_count` retries were used, before jitter."""
        if self.backoff is not None:
            return self.backoff.delay(retry_count)
        schedule = self.schedule or ()
        return schedule[min(retry_count, len(schedule) - 1)]

    def longest_jitter(self, delay_ms: int) -> int:
        return int(self.jitter * delay_ms) if isinstance(self.jitter, float) else self.jitter

    def longest_window_wait(self) -> int:
        """By how much the windows can lengthen a delay, in milliseconds."""
        wait = longest_wait_ms(self.windows) or 0
        return wait + max(window.spread for window in self.windows) if wait else 0

    def tiers(self) -> frozenset[int]:
        """Every delay that this policy can produce: each is a queue on the broker."""
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
        if self.stuck_after is not None:
            changes["stuck_after"] = scale(self.stuck_after)
        return self.model_copy(update=changes)

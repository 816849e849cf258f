"""The topology files as models: names, ladder, destinations and policies, with validation."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from tarry.core.decide import Rulebook
from tarry.core.duration_field import Duration
from tarry.core.durations import UNITS, humanise
from tarry.core.ladder import LONGEST_DELAY, Ladder
from tarry.core.model import Model, Number, Whole
from tarry.core.names import DEFAULT_PREFIX, DEFAULT_REVIEW_QUEUE, WEBHOOKS, Names, default_scheduled
from tarry.core.policy import Glob, Policy
from tarry.core.windows import longest_wait_ms
from tarry.topology.bases import ResolvedTable
from tarry.topology.webhooks import Webhook


@dataclass(frozen=True, slots=True)
class Source:
    """The folder that a topology was read from, and the files of its policies in order."""

    folder: Path
    policy_files: tuple[Path, ...] = ()
    is_shipped: bool = False
    """Whether it is the topology that is shipped with tarry."""
    policies: tuple[ResolvedTable, ...] = ()
    """As the files have them, in order, with what they inherit."""
    bases: tuple[ResolvedTable, ...] = ()
    """The user's own tables that only others extend."""

    @property
    def path(self) -> str:
        """The absolute path of the folder."""
        return os.path.abspath(self.folder)  # noqa: PTH100 - without following links, as pathlib would


T = TypeVar("T")
DeathReason = Literal["rejected", "delivery_limit", "expired", "maxlen"]


LONGEST_TTL = 2**32 - 1
"""Milliseconds: the broker refuses a longer TTL. A longer delay has no tier of its own and waits in the ladder."""

LONGEST_SERVICE_NAME = 240

POLICY_PROBLEMS = "policy_problems"
"""The type of a validation error whose context lists problems: the place of the policy, the key in it, and the text."""


class NamesSection(Model):
    """The names of queues and exchanges on the broker."""

    prefix: str = Field(
        DEFAULT_PREFIX,
        pattern=r"^[A-Za-z0-9_.:-]{1,64}$",
        description="Starts the name of every queue and exchange of this installation; two prefixes can share a vhost.",
    )
    scheduled: str = Field(
        default_factory=lambda given: default_scheduled(given.get("prefix", DEFAULT_PREFIX)),
        min_length=1,
        max_length=LONGEST_SERVICE_NAME,
        description="The queue of retry requests; default: the prefix and `scheduled`.",
    )
    review: str = Field(
        DEFAULT_REVIEW_QUEUE,
        min_length=1,
        max_length=LONGEST_SERVICE_NAME,
        description="The queue of messages that retries did not help; an operator decides about them.",
    )

    @property
    def broker_names(self) -> Names:
        return Names(self.prefix, self.scheduled, self.review)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = self.broker_names
        wrong = [
            f"`{name}` is the name of another of tarry's queues: choose a different one"
            for name in (self.scheduled, self.review)
            if names.is_taken(name)
        ]
        if self.scheduled == self.review:
            wrong.append(f"scheduled and review are both `{self.review}`: they must differ")
        return _or_raise(self, wrong)


class LadderSection(Model):
    """The tiers whose waits add up to any delay. Its shape cannot change while messages are in flight."""

    granularity: Duration = Field(125, ge=1, description="The shortest wait, and the step of all others.")
    radix: Whole = Field(8, ge=2, le=32, description="Steps per level: more means fewer hops and more queues.")
    levels: Whole = Field(7, ge=1, le=12, description="Digits: granularity × radix^levels is the longest delay.")

    @model_validator(mode="after")
    def _broker_can_hold_it(self) -> Self:
        longest = Ladder(self.granularity, self.radix, self.levels).ttl(self.levels - 1, self.radix - 1)
        too_long = f"its longest tier would wait {humanise(longest)}, and a broker holds {humanise(LONGEST_TTL)}"
        return _or_raise(self, [f"{too_long}: use fewer levels"] if longest > LONGEST_TTL else [])


class EventsSection(Model):
    """Events for other programs: each step of each retry, published to an exchange and kept in a stream."""

    enabled: bool = Field(default=False, description="Whether events are published.")
    max_age: Duration = Field(
        7 * UNITS["d"],
        ge=UNITS["m"],
        description="How long the stream keeps events. It deletes whole segments, so some stay longer.",
    )
    max_bytes: Whole = Field(
        1_000_000_000, ge=1_000_000, description="How large the stream becomes before it deletes its oldest events."
    )


class Topology(Model):
    """One installation of tarry."""

    names: NamesSection = Field(default_factory=NamesSection, description="The names of queues and exchanges.")
    ladder: LadderSection = Field(
        default_factory=LadderSection, description="The tiers whose waits add up to any delay."
    )
    destinations: tuple[Glob, ...] = Field(
        ("*",), description="Globs: queues that a request may name and that are bound when first seen."
    )
    failures: tuple[DeathReason, ...] = Field(
        ("rejected", "delivery_limit"), description="Dead-letter reasons that count as a failure; others go to review."
    )
    time_scale: Number = Field(
        1.0, gt=0, le=1000, description="Multiplies every policy duration: 0.001 runs a day's schedule in seconds."
    )
    events: EventsSection = Field(
        default_factory=EventsSection, description="Events for other programs, and how long they are kept."
    )
    webhooks: tuple[Webhook, ...] = Field(
        (), alias="webhook", description="Endpoints that are told of events; needs [events] enabled."
    )
    policies: tuple[Policy, ...] = Field(alias="policy", min_length=1, description="In order; the first match wins.")
    _source: Source | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _webhooks_work(self) -> Self:
        times = Counter(webhook.name for webhook in self.webhooks)
        wrong = [
            f"webhook {name!r}: {number} webhooks have this name: names must differ"
            for name, number in times.items()
            if number > 1
        ]
        if self.webhooks and not self.events.enabled:
            wrong.append("webhooks are told of events, and events are off: set `enabled = true` under [events]")
        if self.webhooks and WEBHOOKS.startswith(self.names.prefix):
            wrong.append(f"the prefix {self.names.prefix!r} also begins the names of webhooks' queues: choose another")
        return _or_raise(self, wrong)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Groups problems by policy, so that the loader can name the file of each."""
        times = Counter(policy.name for policy in self.policies)
        wrong = [
            (place, keys, problem)
            for place, policy in enumerate(self.policies)
            for keys, problem in (
                ((), self._same_name(times[policy.name])),
                (("window",), self._never_open(policy)),
                self._too_long(policy),
            )
            if problem is not None
        ]
        if wrong:
            text = "; ".join(f"policy {self.policies[place].name!r}: {problem}" for place, _, problem in wrong)
            raise PydanticCustomError(POLICY_PROBLEMS, "{text}", {"text": text, "problems": wrong})
        return self

    def _same_name(self, times: int) -> str | None:
        return f"{times} policies have this name: names must differ" if times > 1 else None

    def _never_open(self, policy: Policy) -> str | None:
        if longest_wait_ms(policy.windows) is not None:
            return None
        return f"its windows are never open: {'; '.join(window.describe() for window in policy.windows)}"

    def _too_long(self, policy: Policy) -> tuple[tuple[str, ...], str | None]:
        """What is wrong, after the key that it is about."""
        scaled = policy.scaled(self.time_scale)
        waits = max(delay + scaled.longest_jitter(delay) for delay in scaled.tiers())
        asked, most = waits + scaled.longest_window_wait(), f"more than a year ({humanise(LONGEST_DELAY)})"
        if asked <= LONGEST_DELAY:
            return (), None
        if waits <= LONGEST_DELAY:
            return ("window",), (
                f"a delay of {humanise(waits)} can become {humanise(asked)} while its window is closed, which is "
                f"{most}: shorten it, or open the window more often"
            )
        key = "schedule" if policy.backoff is None else "backoff"
        return (key,), f"a delay of {humanise(waits)} (jitter included) is {most}: shorten it"

    @property
    def source(self) -> Source | None:
        """The folder that it was read from; None if it was created without files."""
        return self._source

    def read_from(self, source: Source) -> Self:
        """The same topology, with a record of where it was read from."""
        made = self.model_copy()
        made._source = source  # noqa: SLF001 - a copy of its own class
        return made

    def policy_label(self, place: int) -> str:
        """`policy email (topology/policies/10-email.toml)`: by its place in the order."""
        name, source = self.policies[place].name, self._source
        return f"policy {name} ({source.policy_files[place]})" if source is not None else f"policy {name}"

    @property
    def ladder_shape(self) -> Ladder:
        return Ladder(self.ladder.granularity, self.ladder.radix, self.ladder.levels)

    @property
    def broker_names(self) -> Names:
        return self.names.broker_names

    @property
    def acceptable(self) -> tuple[str, ...]:
        """Globs: all queues that messages may return to. Those of webhooks always are."""
        names = self.broker_names
        return (*self.destinations, *(names.webhook_queue(webhook.name) for webhook in self.webhooks))

    @property
    def rules(self) -> Rulebook:
        """The rules for the router, with the time scale applied."""
        policies = (
            tuple(policy.scaled(self.time_scale) for policy in self.policies) if self.time_scale != 1 else self.policies
        )
        tiers = {(policy.lane, ms) for policy in policies for ms in policy.tiers() if ms <= LONGEST_TTL}
        return Rulebook(
            policies,
            self.ladder_shape,
            frozenset(ms for lane, ms in tiers if lane is None),
            frozenset((lane, ms) for lane, ms in tiers if lane is not None),
        )

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that policies name, in alphabetical order."""
        return tuple(sorted({policy.lane for policy in self.policies if policy.lane is not None}))


def _or_raise(model: T, wrong: list[str]) -> T:
    """Raises one error with all problems, one per line."""
    if wrong:
        raise ValueError("\n".join(wrong))
    return model

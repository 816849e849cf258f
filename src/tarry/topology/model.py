"""What the files in topology/ say, as one checked model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tarry.core.decide import Rulebook
from tarry.core.durations import Duration, format_duration
from tarry.core.ladder import Ladder
from tarry.core.names import Names
from tarry.core.policy import Model, Policy

DeathReason = Literal["rejected", "delivery_limit", "expired", "maxlen"]


class NamesSection(Model):
    """What things are called on the broker."""

    prefix: str = Field(
        "retry.",
        pattern=r"^[A-Za-z0-9_.:-]{1,64}$",
        description="Starts the name of every queue and exchange of this installation; two prefixes can share a vhost.",
    )
    scheduled: str = Field("retry.scheduled", min_length=1, max_length=240, description="The queue of retry requests.")
    review: str = Field(
        "manual-review.pending", min_length=1, max_length=240, description="The queue a person looks at."
    )


class LadderSection(Model):
    """The odometer of tiers that adds up to any delay."""

    granularity: Duration = Field(125, description="The shortest wait, and the step of all others.")
    radix: int = Field(8, ge=2, le=32, description="Steps per level: more means fewer hops and more queues.")
    levels: int = Field(7, ge=1, le=12, description="Digits: granularity × radix^levels is the longest delay.")


class Topology(Model):
    """One installation of tarry."""

    names: NamesSection = Field(default_factory=NamesSection, description="What things are called on the broker.")
    ladder: LadderSection = Field(default_factory=LadderSection, description="The odometer of tiers.")
    destinations: tuple[str, ...] = Field(
        ("*",), description="Globs: queues that a request may name and that are bound on first sight."
    )
    failures: tuple[DeathReason, ...] = Field(
        ("rejected", "delivery_limit"), description="Dead-letter reasons that count as a failure; others go to review."
    )
    time_scale: float = Field(1.0, gt=0, le=1000, description="Multiplies every policy duration; for tests.")
    policies: tuple[Policy, ...] = Field(alias="policy", min_length=1, description="In order; the first match wins.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: set[str] = set()
        for policy in self.policies:
            if policy.name in seen:
                raise ValueError(f"two policies are called {policy.name!r}: names must differ")
            seen.add(policy.name)
            self._check_fits(policy)
        return self

    def _check_fits(self, policy: Policy) -> None:
        ladder = self.ladder_shape
        longest = max(delay + policy.longest_jitter(delay) for delay in policy.scaled(self.time_scale).tiers())
        if longest > ladder.longest_ms:
            raise ValueError(
                f"policy {policy.name!r}: a delay of {format_duration(longest)} is more than the ladder holds "
                f"({format_duration(ladder.longest_ms)}): shorten it, or add a level to the ladder"
            )

    @property
    def ladder_shape(self) -> Ladder:
        return Ladder(self.ladder.granularity, self.ladder.radix, self.ladder.levels)

    @property
    def broker_names(self) -> Names:
        return Names(self.names.prefix, self.names.scheduled, self.names.review)

    @property
    def rules(self) -> Rulebook:
        """What the router decides by, time scale applied."""
        policies = (
            tuple(policy.scaled(self.time_scale) for policy in self.policies) if self.time_scale != 1 else self.policies
        )
        tiers = frozenset().union(*(policy.tiers() for policy in policies))
        return Rulebook(policies, self.ladder_shape, tiers)

"""Environment variables that override parts of the topology: the names and numbers that the invoice platform sets."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from tarry.core.policy import Policy
from tarry.errors import SettingsError
from tarry.topology.model import NamesSection, Topology

DEFAULT_POLICY = "default"


@dataclass(frozen=True, slots=True)
class Overrides:
    """RETRY_QUEUE, MANUAL_REVIEW_QUEUE, DEFAULT_MAX_RETRIES, BASE_DELAY_MS and MAX_DELAY_MS; None changes nothing."""

    scheduled: str | None = None
    review: str | None = None
    max_retries: int | None = None
    base_ms: int | None = None
    cap_ms: int | None = None

    def apply(self, topology: Topology) -> Topology:
        """The topology with these overrides; every command must use the same."""
        names = self.names(topology.names)
        if (self.max_retries, self.base_ms, self.cap_ms) == (None, None, None):
            return topology.model_copy(update={"names": names})
        if not any(policy.name == DEFAULT_POLICY for policy in topology.policies):
            raise SettingsError(
                "DEFAULT_MAX_RETRIES, BASE_DELAY_MS and MAX_DELAY_MS change the policy called `default`, "
                "and the topology has none: name one so, or unset them."
            )
        policies = tuple(
            self._policy(policy) if policy.name == DEFAULT_POLICY else policy for policy in topology.policies
        )
        return topology.model_copy(update={"names": names, "policies": policies})

    def names(self, names: NamesSection) -> NamesSection:
        """The names of the files with these overrides."""
        wanted = {"scheduled": self.scheduled, "review": self.review}
        given = {key: value for key, value in wanted.items() if value is not None}
        try:
            return NamesSection.model_validate(names.model_dump() | given)
        except ValidationError as error:
            problems = [one["msg"].removeprefix("Value error, ") for one in error.errors()]
            raise SettingsError(f"RETRY_QUEUE or MANUAL_REVIEW_QUEUE: {'; '.join(problems)}.") from None

    def _policy(self, policy: Policy) -> Policy:
        changes: dict[str, object] = {}
        if self.max_retries is not None:
            changes["max_retries"] = self.max_retries
            changes["max_retries_ceiling"] = max(policy.ceiling, self.max_retries)
        if (self.base_ms, self.cap_ms) != (None, None):
            if policy.backoff is None:
                raise SettingsError("BASE_DELAY_MS and MAX_DELAY_MS need a `default` policy with a backoff.")
            base, cap = self.base_ms or policy.backoff.base, self.cap_ms or policy.backoff.cap
            if cap < base:
                raise SettingsError(f"MAX_DELAY_MS ({cap}) is below BASE_DELAY_MS ({base}).")
            changes["backoff"] = policy.backoff.model_copy(update={"base": base, "cap": cap})
        return policy.model_copy(update=changes)

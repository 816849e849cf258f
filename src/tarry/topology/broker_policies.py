"""Determines which broker policy applies to a queue or exchange, and how it changes the queue's arguments.

The rules are the broker's own (measured on 3.10 and 4.3). Of the policies that match, only the one with the highest
priority applies. A policy with a key that the queue's type does not support is skipped entirely. Operator policies are
chosen the same way and apply on top. If an argument and a policy key set the same thing, the lower value wins for a
limit, and the argument wins for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tarry.topology.objects import Exchange, Queue, Scalar

LOWER_WINS = frozenset(
    {"message-ttl", "expires", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes"}
    | {"delivery-limit", "consumer-timeout"}
)

VOID_FOR_QUORUM = frozenset(
    {"ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure", "queue-master-locator"}
    | {"queue-mode", "max-priority", "single-active-consumer"}
)
"""If a policy has one of these keys, the broker skips the whole policy for a quorum queue."""

VOID_FOR_CLASSIC = frozenset(
    {"delivery-limit", "dead-letter-strategy", "max-in-memory-length", "max-in-memory-bytes", "target-group-size"}
)


@dataclass(frozen=True, slots=True)
class BrokerPolicy:
    """A policy or operator policy of the broker; unrelated to tarry's retry policies."""

    name: str
    pattern: str
    apply_to: str = "all"
    priority: int = 0
    definition: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> BrokerPolicy:
        return cls(about["name"], about["pattern"], about["apply-to"], about.get("priority", 0), about["definition"])

    def fits(self, thing: Queue | Exchange) -> bool:
        return self._kind_fits(thing) and not self._is_void(thing) and self._name_fits(thing.name)

    def _kind_fits(self, thing: Queue | Exchange) -> bool:
        if isinstance(thing, Exchange):
            return self.apply_to in ("all", "exchanges")
        return self.apply_to in ("all", "queues", f"{_type(thing)}_queues")

    def _is_void(self, thing: Queue | Exchange) -> bool:
        if isinstance(thing, Exchange):
            return False
        return not (VOID_FOR_QUORUM if _type(thing) == "quorum" else VOID_FOR_CLASSIC).isdisjoint(self.definition)

    def _name_fits(self, name: str) -> bool:
        """Whether the pattern matches the name.

        The broker's patterns are PCRE; the few that Python cannot parse are assumed to match, so that they are
        reported.
        """
        try:
            return re.search(self.pattern, name) is not None
        except re.error:
            return True


def policy_for(thing: Queue | Exchange, policies: Iterable[BrokerPolicy]) -> BrokerPolicy | None:
    """The policy that applies: of those that match, the one with the highest priority."""
    return max((policy for policy in policies if policy.fits(thing)), key=lambda policy: policy.priority, default=None)


_ONE_NAME = re.compile(r"\^((?:[^\\\[\](){}.*+?|^$]|\\[^\w])*)\$(?:\(\?#[^)]*\))?", re.DOTALL)
"""A pattern that matches one name, as attach writes it: `^orders\\.eu$(?#tarry attach; …)`."""


class PoliciesByName:
    """Finds the policy that applies to many queues, without comparing each with all policies: ten thousand attached
    queues have twenty thousand policies, each of which matches one name.
    """

    def __init__(self, policies: Iterable[BrokerPolicy]) -> None:
        self._of_one: dict[str, list[tuple[int, BrokerPolicy]]] = {}
        self._others: list[tuple[int, BrokerPolicy]] = []
        for place, policy in enumerate(policies):
            found = _ONE_NAME.fullmatch(policy.pattern)
            if found is None:
                self._others.append((place, policy))
            else:
                self._of_one.setdefault(re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL), []).append((place, policy))

    def policy_for(self, thing: Queue | Exchange) -> BrokerPolicy | None:
        """As the function. The name may end in a line break, which `$` ignores."""
        names = {thing.name, thing.name.removesuffix("\n")}
        candidates = [*self._others, *(one for name in names for one in self._of_one.get(name, ()))]
        return policy_for(thing, (policy for _, policy in sorted(candidates, key=lambda one: one[0])))


def resolved(key: str, argument: Scalar | None, policy: Scalar | None) -> Scalar | None:
    """The effective value if an argument and a policy key set the same thing."""
    if argument is None or policy is None:
        return policy if argument is None else argument
    if key in LOWER_WINS and isinstance(argument, int) and isinstance(policy, int):
        return min(argument, policy)
    return argument


def overridden(queue: Queue, policy: BrokerPolicy) -> dict[str, tuple[Scalar | None, Scalar]]:
    """The policy keys that change the queue's own arguments: key to (argument, effective value)."""
    arguments = queue.arguments.as_dict()
    found: dict[str, tuple[Scalar | None, Scalar]] = {}
    for key, value in sorted(policy.definition.items()):
        argument = arguments.get(f"x-{key}")
        now = resolved(key, argument, value)
        if now is not None and now != argument:
            found[key] = (argument, now)
    return found


def _type(queue: Queue) -> str:
    return str(queue.arguments.as_dict().get("x-queue-type", "classic"))

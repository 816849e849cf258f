"""What a topology expects on the broker, and which queues come from an earlier topology.

Queues of an earlier topology are retired tiers, check queues and the levels of a taller ladder. They are recognized
only by names that tarry itself would create, so that a second installation whose prefix begins with ours, a relay
queue, a held queue or a user's own queue is never mistaken for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tarry.core.names import Destination, Holder, Names
from tarry.topology.blueprint import blueprint, destination_blueprint, held_queue
from tarry.topology.live import Live
from tarry.topology.model import Topology
from tarry.topology.objects import Blueprint, Exchange, Queue, Role


def tier_role(names: Names, queue: str) -> Role | None:
    """`tier`, `ladder`, `check` or None, from the name alone: messages leave such a queue when its TTL ends."""
    found = names.parse(queue) if names.has_prefix(queue) else None
    if found is not None and found.kind == "check":
        return "check"
    if found is None or found.delay is None:
        return None
    return "tier" if found.level is None else "ladder"


def left_over_queues(names: Names, wanted: Blueprint, live: Live) -> Iterator[Queue]:
    """Retired tiers, and the queues of webhooks that are gone."""
    known = {queue.name for queue in wanted.queues}
    for name, queue in sorted(live.queues.items()):
        role = "webhook" if names.webhook_of(name) is not None else tier_role(names, name)
        if role is not None and name not in known:
            yield Queue(name, queue.arguments, role, queue.durable)


def left_over_exchanges(names: Names, wanted: Blueprint, live: Live) -> Iterator[Exchange]:
    known = {exchange.name for exchange in wanted.exchanges}
    for name, exchange in sorted(live.exchanges.items()):
        if names.is_ladder_exchange(name) and name not in known:
            yield exchange


@dataclass(frozen=True, slots=True)
class Expected:
    """The topology's blueprint, with its names and with the vhost, which the suggested commands need."""

    topology: Topology
    names: Names
    blueprint: Blueprint
    vhost: str = "/"
    _known: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of all parts of the blueprint."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", frozenset(part.name for part in self.blueprint.parts))

    @classmethod
    def of(cls, topology: Topology, vhost: str = "/") -> Expected:
        return cls(topology, topology.broker_names, blueprint(topology), vhost)

    def is_ours(self, name: str) -> bool:
        """Whether the name is in the blueprint, or is a relay, a held queue or a retired tier.

        These are all the queues and exchanges whose settings can affect a retry.
        """
        return name in self._known or tier_role(self.names, name) is not None or self._serves_destination(name)

    def _serves_destination(self, name: str) -> bool:
        return self.names.destination_label(name) is not None

    def relay_of(self, destination: Destination) -> Queue | None:
        return next(iter(destination_blueprint(self.names, destination).queues), None)

    def held_of(self, holder: Holder) -> Queue:
        return held_queue(self.names, holder)

"""What a topology expects on the broker, and which queues come from an earlier topology.

Queues of an earlier topology are retired tiers, check queues, the levels of a taller ladder, and all queues of a lane
that no policy names. They are recognized
only by names that tarry itself would create, so that a second installation whose prefix begins with ours, a relay
queue, a held queue or a user's own queue is never mistaken for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tarry.core.names import Destination, Holder, Names
from tarry.topology.blueprint import blueprint, destination_blueprint, held_queue, lane_relays
from tarry.topology.live import Live
from tarry.topology.model import Topology
from tarry.topology.objects import Binding, Blueprint, Exchange, Queue, Role


def tier_role(names: Names, queue: str) -> Role | None:
    """`tier`, `ladder`, `check` or None, from the name alone: messages leave such a queue when its TTL ends."""
    found = names.parse(queue) if names.has_prefix(queue) else None
    if found is not None and found.kind == "check":
        return "check"
    if found is None or found.delay is None:
        return None
    return "tier" if found.level is None else "ladder"


def lanes_of(names: Names, parts: Iterable[str]) -> set[str]:
    """The lanes that have an exchange or a queue among these names."""
    found = (names.lane_of_exchange(part) or names.lane_of(part) for part in parts)
    return {lane for lane in found if lane is not None}


def lanes_wanted(names: Names, wanted: Blueprint) -> set[str]:
    return lanes_of(names, (part.name for part in wanted.parts))


def lane_relays_missing(names: Names, wanted: Blueprint, live: Live) -> Blueprint:
    """What destinations that were attached before a lane existed lack in it: a relay queue of their own."""
    lanes = sorted(lanes_wanted(names, wanted))
    own = [lane_relays(names, one, lanes) for one in with_own_relay(names, live)] if lanes else []
    return Blueprint(
        exchanges=(),
        queues=tuple(queue for one in own for queue in one.queues if queue.name not in live.queues),
        bindings=tuple(found for one in own for found in one.bindings if found not in live.bindings),
    )


def with_own_relay(names: Names, live: Live) -> list[Destination]:
    """The destinations that have a relay queue of their own: those that are attached. The binding's key tells a queue
    whose name starts with `exchange:` from an exchange.
    """
    found: set[Destination] = set()
    for binding in live.bindings_from(names.relay):
        label = names.destination_label(binding.destination)
        candidates = {Destination("queue", label), Destination.of_label(label)} if label is not None else set()
        found |= {one for one in candidates if one.key == binding.key}
    return sorted(found)


def left_over_queues(names: Names, wanted: Blueprint, live: Live) -> Iterator[Queue]:
    """Retired tiers, all queues of lanes that no policy names, and the queues of webhooks that are gone."""
    known, lanes = {queue.name for queue in wanted.queues}, lanes_wanted(names, wanted)
    for name, queue in sorted(live.queues.items()):
        role = "webhook" if names.webhook_of(name) is not None else tier_role(names, name)
        lane = names.lane_of(name)
        if role is None and lane is not None and lane not in lanes:
            role = "relay"
        if role is not None and name not in known:
            yield Queue(name, queue.arguments, role, queue.durable)


def left_over_exchanges(names: Names, wanted: Blueprint, live: Live) -> Iterator[Exchange]:
    known = {exchange.name for exchange in wanted.exchanges}
    for name, exchange in sorted(live.exchanges.items()):
        of_lane = names.lane_of_exchange(name) is not None or name == names.lanes_cancelled
        if (names.is_ladder_exchange(name) or of_lane) and name not in known:
            yield exchange


def former_entries(names: Names, wanted: Blueprint, live: Live) -> Iterator[Binding]:
    """Bindings that lead into a lane that no policy names. Without them its queues become empty by themselves; a router
    that still publishes into the lane is told so, and uses the shared ladder.
    """
    lanes = lanes_wanted(names, wanted)
    for binding in sorted(live.bindings_from(names.delay), key=str):
        lane = names.lane_of_key(binding.key)
        if lane is not None and lane not in lanes:
            yield binding


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

    def relays_of(self, destination: Destination) -> list[Queue]:
        """Its relay queue, and one in each lane."""
        found = destination_blueprint(self.names, destination, self.topology.lanes).queues
        return [queue for queue in found if queue.role == "relay"]

    def held_of(self, holder: Holder) -> Queue:
        return held_queue(self.names, holder)

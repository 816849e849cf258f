"""What verify holds the broker against: the files, unfolded once."""

from __future__ import annotations

from dataclasses import dataclass

from tarry.core.names import Destination, Names
from tarry.topology.blueprint import blueprint, destination_blueprint, held_queue
from tarry.topology.left_over import tier_role
from tarry.topology.model import Topology
from tarry.topology.objects import Blueprint, Queue


@dataclass(frozen=True, slots=True)
class Expected:
    """The topology's blueprint with its names and the vhost, which the mending commands need."""

    topology: Topology
    names: Names
    blueprint: Blueprint
    vhost: str = "/"

    @classmethod
    def of(cls, topology: Topology, vhost: str = "/") -> Expected:
        return cls(topology, topology.broker_names, blueprint(topology), vhost)

    def is_ours(self, name: str) -> bool:
        """In the blueprint, or a relay, a held queue or a retired tier: everything whose settings matter to a retry."""
        known = {part.name for part in self.blueprint.parts}
        return name in known or tier_role(self.names, name) is not None or self._serves_destination(name)

    def _serves_destination(self, name: str) -> bool:
        return name.startswith((f"{self.names.prefix}relay.", f"{self.names.prefix}held."))

    def relay_of(self, destination: Destination) -> Queue | None:
        return next(iter(destination_blueprint(self.names, destination).queues), None)

    def held_of(self, destination: Destination) -> Queue:
        return held_queue(self.names, destination)

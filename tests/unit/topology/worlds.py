"""Small topologies and the brokers that match them, for tests of pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tarry.topology.expected import Expected
from tarry.topology.live import Live
from tarry.topology.model import Topology
from tarry.topology.objects import Arguments, Binding, Blueprint, Queue

MODERN = (4, 3, 6)


def topology(**changes: Any) -> Topology:
    """Two tiers, two levels of four: small enough to read."""
    policy = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}
    ladder = {"granularity": "125ms", "radix": 4, "levels": 4}
    return Topology.model_validate({"ladder": ladder, "policy": [policy]} | changes)


def expected(**changes: Any) -> Expected:
    return Expected.of(topology(**changes))


def live(blueprint: Blueprint, **changes: Any) -> Live:
    """A broker on which all of it stands."""
    standing = Live(
        version=MODERN,
        exchanges={exchange.name: exchange for exchange in blueprint.exchanges},
        queues={queue.name: queue for queue in blueprint.queues},
        bindings=frozenset(blueprint.bindings),
    )
    return replace(standing, **changes)


def without_queue(world: Live, name: str) -> Live:
    """As the broker does it: a queue's bindings go with it."""
    left = {other: queue for other, queue in world.queues.items() if other != name}
    bindings = frozenset(
        binding for binding in world.bindings if (binding.destination_type, binding.destination) != ("queue", name)
    )
    return replace(world, queues=left, bindings=bindings)


def with_queue(world: Live, queue: Queue) -> Live:
    return replace(world, queues={**world.queues, queue.name: queue})


def with_argument(world: Live, name: str, argument: str, value: str | int | None) -> Live:
    queue = world.queues[name]
    arguments = queue.arguments.as_dict()
    arguments.pop(argument, None)
    changed = arguments if value is None else arguments | {argument: value}
    return with_queue(world, replace(queue, arguments=Arguments.read(changed)))


def with_binding(world: Live, binding: Binding) -> Live:
    return replace(world, bindings=world.bindings | {binding})


def without_binding(world: Live, binding: Binding) -> Live:
    return replace(world, bindings=world.bindings - {binding})

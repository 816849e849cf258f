"""Small topologies, and brokers that match them, for tests of pure functions."""

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
    """A broker that has every object of the blueprint."""
    standing = Live(
        version=MODERN,
        exchanges={exchange.name: exchange for exchange in blueprint.exchanges},
        queues={queue.name: queue for queue in blueprint.queues},
        bindings=frozenset(blueprint.bindings),
    )
    return replace(standing, **changes)


def without_queue(broker: Live, name: str) -> Live:
    """As on a broker, the bindings of a deleted queue are deleted too."""
    left = {other: queue for other, queue in broker.queues.items() if other != name}
    bindings = frozenset(
        binding for binding in broker.bindings if (binding.destination_type, binding.destination) != ("queue", name)
    )
    return replace(broker, queues=left, bindings=bindings)


def with_queue(broker: Live, queue: Queue) -> Live:
    return replace(broker, queues={**broker.queues, queue.name: queue})


def with_argument(broker: Live, name: str, argument: str, value: str | int | None) -> Live:
    queue = broker.queues[name]
    arguments = queue.arguments.as_dict()
    arguments.pop(argument, None)
    changed = arguments if value is None else arguments | {argument: value}
    return with_queue(broker, replace(queue, arguments=Arguments.read(changed)))


def with_binding(broker: Live, binding: Binding) -> Live:
    return replace(broker, bindings=broker.bindings | {binding})


def without_binding(broker: Live, binding: Binding) -> Live:
    return replace(broker, bindings=broker.bindings - {binding})

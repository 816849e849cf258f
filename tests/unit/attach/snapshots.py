"""Broker snapshots for tests of the pure part of attach."""

from __future__ import annotations

from typing import Any

from tarry.attach.snapshot import BrokerSnapshot, UserQueue
from tarry.core.names import GATE_KINDS, Names
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.live import Live
from tarry.topology.objects import Arguments, Binding, Exchange

NAMES = Names()
FAILURES = ("rejected", "delivery_limit")


def a_queue(name: str = "orders", kind: str = "quorum", policy: str | None = None, **traits: Any) -> UserQueue:
    settled: dict[str, Any] = {"durable": True, "auto_delete": False, "exclusive": False, "arguments": {}} | traits
    return UserQueue(name=name, type=kind, policy=policy, **settled)


def a_policy(name: str = "team", pattern: str = "^orders$", priority: int = 0, **definition: Any) -> BrokerPolicy:
    """`a_policy(max_length=5)`: underscores become dashes."""
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    return BrokerPolicy(name, pattern, "queues", priority, keys)


def an_exchange(name: str, kind: str = "topic", alternate: str | None = None, **traits: Any) -> Exchange:
    return Exchange(name, kind, Arguments.of(alternate_exchange=alternate), **traits)


def a_snapshot(
    *queues: UserQueue,
    policies: tuple[BrokerPolicy, ...] = (),
    operator: tuple[BrokerPolicy, ...] = (),
    exchanges: tuple[Exchange, ...] = (),
    bindings: tuple[Binding, ...] = (),
    version: tuple[int, ...] = (4, 3, 6),
    with_queues: tuple[str, ...] = (),
) -> BrokerSnapshot:
    """A broker on which the topology is applied."""
    gates = [*map(NAMES.gate, GATE_KINDS)]
    on_the_way = (NAMES.intake, NAMES.relay, NAMES.held_gate, NAMES.arrive, *gates, NAMES.home, NAMES.deliver)
    own = [Exchange(name, "direct") for name in on_the_way]
    standing = (
        Binding(NAMES.intake, "", NAMES.scheduled),
        Binding(NAMES.arrive, "", gates[0], "exchange"),
        Binding(NAMES.home, "", NAMES.deliver, "exchange"),
    )
    live = Live(
        version=version,
        exchanges={exchange.name: exchange for exchange in (*own, *exchanges)},
        queues={queue.name: queue.as_queue() for queue in (*queues, *map(a_queue, with_queues))},
        bindings=frozenset({*standing, *bindings}),
        policies=policies,
        operator_policies=operator,
    )
    return BrokerSnapshot(NAMES, live, {queue.name: queue for queue in queues})

"""Brokers as the pure half of attach sees them, written down in a test."""

from __future__ import annotations

from typing import Any

from tarry.attach.survey import Survey, UserQueue
from tarry.core.names import Names
from tarry.topology.live import Live
from tarry.topology.objects import Arguments, Binding, Exchange
from tarry.topology.policies import BrokerPolicy

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


def a_survey(
    *queues: UserQueue,
    policies: tuple[BrokerPolicy, ...] = (),
    operator: tuple[BrokerPolicy, ...] = (),
    exchanges: tuple[Exchange, ...] = (),
    bindings: tuple[Binding, ...] = (),
    version: tuple[int, ...] = (4, 3, 6),
    with_queues: tuple[str, ...] = (),
) -> Survey:
    """A broker on which the topology is applied."""
    on_the_way = (NAMES.intake, NAMES.relay, NAMES.held_gate, NAMES.arrive, NAMES.deliver)
    own = [Exchange(name, "direct") for name in on_the_way]
    standing = (Binding(NAMES.intake, "", NAMES.scheduled), Binding(NAMES.arrive, "", NAMES.deliver, "exchange"))
    live = Live(
        version=version,
        exchanges={exchange.name: exchange for exchange in (*own, *exchanges)},
        queues={queue.name: queue.as_queue() for queue in (*queues, *map(a_queue, with_queues))},
        bindings=frozenset({*standing, *bindings}),
        policies=policies,
        operator_policies=operator,
    )
    return Survey(NAMES, live, {queue.name: queue for queue in queues})

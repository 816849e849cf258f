"""What stands between the files and the live broker. Pure: a blueprint and a snapshot in, differences out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tarry.core.names import Names
from tarry.topology.left_over import left_over_exchanges, left_over_queues
from tarry.topology.live import Live
from tarry.topology.objects import Binding, Blueprint, Exchange, Queue, Scalar


@dataclass(frozen=True, slots=True)
class Difference:
    """A queue or exchange that is there under the right name and is not what the files say."""

    wanted: Queue | Exchange
    live: Queue | Exchange
    messages: int = 0

    @property
    def details(self) -> dict[str, tuple[Scalar | None, Scalar | None]]:
        """Property to (live, wanted)."""
        live, wanted = self.live.properties(), self.wanted.properties()
        keys = sorted(live.keys() | wanted.keys())
        return {key: (live.get(key), wanted.get(key)) for key in keys if live.get(key) != wanted.get(key)}


@dataclass(frozen=True, slots=True)
class Conflict:
    """A key of tarry's own that leads somewhere else as well: each message would go both ways."""

    wanted: Binding
    live: Binding


@dataclass(frozen=True, slots=True)
class Plan:
    """Missing is what apply declares, in order. Different and conflicting need a person; left over needs drain."""

    missing: Blueprint
    different: tuple[Difference, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    left_over: tuple[Queue | Exchange, ...] = ()

    @property
    def nothing_to_do(self) -> bool:
        return not (len(self.missing) or self.different or self.conflicts or self.left_over)


def make_plan(names: Names, wanted: Blueprint, live: Live) -> Plan:
    return Plan(
        missing=Blueprint(
            exchanges=tuple(exchange for exchange in wanted.exchanges if exchange.name not in live.exchanges),
            queues=tuple(queue for queue in wanted.queues if queue.name not in live.queues),
            bindings=tuple(binding for binding in wanted.bindings if binding not in live.bindings),
        ),
        different=tuple(_different(wanted, live)),
        conflicts=tuple(_conflicts(wanted, live)),
        left_over=(*left_over_queues(names, wanted, live), *left_over_exchanges(names, wanted, live)),
    )


def _different(wanted: Blueprint, live: Live) -> Iterator[Difference]:
    for exchange in wanted.exchanges:
        there = live.exchanges.get(exchange.name)
        if there is not None and there != exchange:
            yield Difference(exchange, there)
    for queue in wanted.queues:
        standing = live.queues.get(queue.name)
        if standing is not None and standing != queue:
            yield Difference(queue, standing, live.depths.get(queue.name, 0))


def _conflicts(wanted: Blueprint, live: Live) -> Iterator[Conflict]:
    """A ladder of another shape under the same prefix shows up here: same digit, another queue."""
    direct = {exchange.name for exchange in wanted.exchanges if exchange.type == "direct"}
    ours = {(binding.source, binding.key): binding for binding in wanted.bindings if binding.source in direct}
    for binding in sorted(live.bindings - set(wanted.bindings), key=str):
        meant = ours.get((binding.source, binding.key))
        if meant is not None:
            yield Conflict(meant, binding)

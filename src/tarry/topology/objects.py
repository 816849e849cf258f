"""The three things a topology is made of on a broker. Values compare by content, so plans are set differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Scalar = str | int | bool


@dataclass(frozen=True, slots=True)
class Arguments:
    """An immutable mapping that hashes: the x-arguments of a queue, exchange or binding."""

    items: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def of(cls, **arguments: Scalar | None) -> Arguments:
        """`Arguments.of(x_message_ttl=1000)`: underscores become dashes, None is left out."""
        given = {name.replace("_", "-"): value for name, value in arguments.items() if value is not None}
        return cls(tuple(sorted(given.items())))

    def __iter__(self) -> Iterator[tuple[str, Scalar]]:
        return iter(self.items)

    def as_dict(self) -> dict[str, Scalar]:
        return dict(self.items)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    type: Literal["direct", "fanout"]
    arguments: Arguments = field(default_factory=Arguments)

    @property
    def alternate(self) -> str | None:
        found = self.arguments.as_dict().get("alternate-exchange")
        return None if found is None else str(found)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue; its type is one of its arguments."""

    name: str
    arguments: Arguments = field(default_factory=Arguments)
    role: Literal["tier", "ladder", "relay", "held", "work", "record"] = field(default="work", compare=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue or to another exchange."""

    source: str
    key: str
    destination: str
    destination_type: Literal["queue", "exchange"] = "queue"


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A whole topology, each part in an order that is safe to declare one after the other."""

    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]

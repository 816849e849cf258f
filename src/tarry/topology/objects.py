"""The three kinds of objects that a topology consists of on a broker: exchanges, queues and bindings.

They compare by content, so plans are set differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Scalar = str | int | float | bool
Role = Literal["tier", "ladder", "relay", "held", "check", "work", "record", "events", "webhook"]

HARMLESS_ARGUMENTS = frozenset({"x-queue-leader-locator", "x-quorum-initial-group-size", "x-quorum-target-group-size"})
"""The placement of a queue's replicas is the operator's choice; it does not affect anything that tarry relies on."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """An immutable, hashable mapping: the x-arguments of a queue, exchange or binding."""

    items: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def of(cls, **arguments: Scalar | None) -> Arguments:
        """`Arguments.of(x_message_ttl=1000)`: underscores become dashes, None is left out."""
        return cls.read({name.replace("_", "-"): value for name, value in arguments.items() if value is not None})

    @classmethod
    def read(cls, arguments: Mapping[str, Scalar]) -> Arguments:
        """Reads the arguments that the broker reports; drops those that tarry does not depend on."""
        return cls(tuple(sorted(item for item in arguments.items() if item[0] not in HARMLESS_ARGUMENTS)))

    def __iter__(self) -> Iterator[tuple[str, Scalar]]:
        return iter(self.items)

    def as_dict(self) -> dict[str, Scalar]:
        return dict(self.items)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. Tarry's own are direct or fanout, that of events is a topic exchange."""

    name: str
    type: str
    arguments: Arguments = field(default_factory=Arguments)
    durable: bool = True
    internal: bool = False

    kind: ClassVar[str] = "exchange"

    @property
    def alternate(self) -> str | None:
        found = self.arguments.as_dict().get("alternate-exchange")
        return None if found is None else str(found)

    def properties(self) -> dict[str, Scalar]:
        """Everything that must be equal on the broker, by its usual name."""
        return {"type": self.type, "durable": self.durable, "internal": self.internal, **self.arguments.as_dict()}


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue; its type is one of its arguments."""

    name: str
    arguments: Arguments = field(default_factory=Arguments)
    role: Role = field(default="work", compare=False)
    durable: bool = True

    kind: ClassVar[str] = "queue"

    @property
    def ttl_ms(self) -> int | None:
        found = self.arguments.as_dict().get("x-message-ttl")
        return None if found is None else int(found)

    @property
    def dead_letters_to(self) -> str | None:
        found = self.arguments.as_dict().get("x-dead-letter-exchange")
        return None if found is None else str(found)

    def properties(self) -> dict[str, Scalar]:
        """Everything that must be equal on the broker, by its usual name."""
        return {"durable": self.durable, **self.arguments.as_dict()}


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue or to another exchange."""

    source: str
    key: str
    destination: str
    destination_type: Literal["queue", "exchange"] = "queue"

    def __str__(self) -> str:
        return f"{self.source} ─{self.key or '(all)'}▶ {self.destination_type} {self.destination}"


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A whole topology, with its objects in an order in which they can safely be declared."""

    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]

    @property
    def parts(self) -> tuple[Exchange | Queue, ...]:
        """All objects that have a name: exchanges and queues."""
        return (*self.exchanges, *self.queues)

    def __len__(self) -> int:
        return len(self.exchanges) + len(self.queues) + len(self.bindings)

"""The three things a topology is made of on a broker. Values compare by content, so plans are set differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Scalar = str | int | float | bool
Role = Literal["tier", "ladder", "relay", "held", "work", "record"]

HARMLESS_ARGUMENTS = frozenset({"x-queue-leader-locator", "x-quorum-initial-group-size", "x-quorum-target-group-size"})
"""Where a queue's replicas live is the operator's choice; it changes nothing that tarry relies on."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """An immutable mapping that hashes: the x-arguments of a queue, exchange or binding."""

    items: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def of(cls, **arguments: Scalar | None) -> Arguments:
        """`Arguments.of(x_message_ttl=1000)`: underscores become dashes, None is left out."""
        return cls.read({name.replace("_", "-"): value for name, value in arguments.items() if value is not None})

    @classmethod
    def read(cls, arguments: Mapping[str, Scalar]) -> Arguments:
        """As the broker reports them; what tarry does not care about is left out."""
        return cls(tuple(sorted(item for item in arguments.items() if item[0] not in HARMLESS_ARGUMENTS)))

    def __iter__(self) -> Iterator[tuple[str, Scalar]]:
        return iter(self.items)

    def as_dict(self) -> dict[str, Scalar]:
        return dict(self.items)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange; tarry's own are direct or fanout."""

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
        """All that must be equal on the broker, by the names people know."""
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
        """All that must be equal on the broker, by the names people know."""
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
    """A whole topology, each part in an order that is safe to declare one after the other."""

    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]

    @property
    def parts(self) -> tuple[Exchange | Queue, ...]:
        """All that has a name."""
        return (*self.exchanges, *self.queues)

    def __len__(self) -> int:
        return len(self.exchanges) + len(self.queues) + len(self.bindings)

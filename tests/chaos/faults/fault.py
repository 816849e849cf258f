"""What a fault is: something to prepare, to inject and to heal, and what it may do to messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tarry.service.connections import IN_FLIGHT as BATCHES
from tests.chaos.judge import Allowance
from tests.chaos.scene import BATCH, Scene, wait
from tests.chaos.stage import Kind, Stage

IN_FLIGHT = BATCHES * BATCH
"""Requests that a router is moving."""

SLOTS = 32
"""Messages that a queue is dead-lettering at once."""


@dataclass(frozen=True)
class Size:
    """How much load."""

    messages: int
    rate: float


SINGLE: tuple[Kind, ...] = ("4.3", "3.10")
CRASH = (
    "requests in flight when a router loses its process or connection are done again: "
    f"{BATCHES} batches of {BATCH} each time"
)


@dataclass
class Fault(ABC):
    """One kind of trouble. `short` makes it last a moment only, for the suite."""

    short: bool = False

    name: ClassVar[str]
    title: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]] = SINGLE
    times: ClassVar[int] = 1
    lasts: ClassVar[float] = 5.0
    lasts_short: ClassVar[float] = 1.5

    @property
    def duration(self) -> float:
        return self.lasts_short if self.short else self.lasts

    @property
    def repeats(self) -> int:
        return 1 if self.short else self.times

    def size(self, usual: Size) -> Size:
        """How much load a full run puts on it."""
        return usual

    def obstacle(self, stage: Stage) -> str | None:  # noqa: ARG002  most need nothing special
        """Why it cannot be had here, or None."""
        return None

    def prepare(self, scene: Scene) -> None:  # noqa: B027  most need nothing
        """Before the first router starts."""

    @abstractmethod
    def inject(self, scene: Scene) -> None: ...

    def endure(self, scene: Scene) -> None:  # noqa: ARG002  some do more than wait
        """Between injecting and healing."""
        wait(self.duration)

    @abstractmethod
    def heal(self, scene: Scene) -> None: ...

    def finish(self, scene: Scene) -> None:  # noqa: B027  most need nothing
        """When the load is over and all have arrived."""

    def allowance(self) -> Allowance:
        return Allowance()

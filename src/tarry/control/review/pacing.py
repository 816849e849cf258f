"""A steady rate: so many a second, in small batches, without catching up on what was missed. Pure but for its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TICKS = 5
"""Batches a second at a rate that is worth batching."""


@dataclass(slots=True)
class Pacer:
    """Asked before each batch how long to wait."""

    rate: float | None
    clock: Callable[[], float]
    _next: float | None = None

    def batch(self, most: int) -> int:
        """How many go at once."""
        return most if self.rate is None else max(1, min(most, int(self.rate / TICKS)))

    def wait(self, count: int) -> float:
        """Seconds until a batch of so many may go."""
        if self.rate is None:
            return 0.0
        now = self.clock()
        at = now if self._next is None else max(self._next, now)
        self._next = at + count / self.rate
        return at - now

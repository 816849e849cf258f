"""Publishes that the broker keeps refusing: past some time a new connection is worth a try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tarry.broker.publisher import Outcome
from tarry.router.flow import Result

LONG = 15.0
"""Seconds of refusals before a new connection is tried, and between two of them."""

PAUSE = 10.0
"""Seconds without a refusal after which it counts as over."""


@dataclass(slots=True)
class Refusals:
    """A 3.10 broker goes on refusing a channel that once met a full queue when the limit itself is taken away."""

    clock: Callable[[], float]
    _since: float | None = None
    _last: float = 0.0

    def go_on(self, result: Result) -> bool:
        """Whether they have gone on for long; counts anew after each yes."""
        if not any(outcome is Outcome.NACKED for _, outcome in (*result.stuck, *result.detours)):
            return False
        now = self.clock()
        if self._since is None or now - self._last > PAUSE:
            self._since = now
        self._last = now
        if now - self._since < LONG:
            return False
        self._since = None
        return True

"""How much one caller may ask: a bucket each that fills again with time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_CALLERS = 1_000
"""Buckets kept; the one longest unused goes first."""

BURST_SECONDS = 2
"""A bucket holds what fills in so long."""


class Rates:
    """Requests a second for each caller; 0 is any number."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0 if this one may go on; else how many seconds too early it is."""
        if not self._rate:
            return 0.0
        now, most = self._clock(), float(self._rate * BURST_SECONDS)
        level, at = self._buckets.pop(caller, (most, now))
        level = min(most, level + (now - at) * self._rate)
        enough = level >= 1
        self._buckets[caller] = (level - 1 if enough else level, now)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if enough else (1 - level) / self._rate

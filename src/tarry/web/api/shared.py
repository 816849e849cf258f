"""An answer that is costly to make, made once for all who ask within a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One at work at a time; what it found is good for `fresh` seconds."""

    def __init__(self, make: Callable[[], Awaitable[T]], fresh: float) -> None:
        self._make = make
        self._fresh = fresh
        self._lock = asyncio.Lock()
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        async with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > self._fresh:
                self._made = (time.monotonic(), await self._make())
            return self._made[1]

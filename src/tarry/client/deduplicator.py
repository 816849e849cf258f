"""Suppresses duplicates, for handlers that cannot tolerate the rare duplicate of an at-least-once delivery.

A deduplicator remembers which attempts were completed, by retry id and round. A retry is another attempt, and runs. A
first delivery is identified by message id, queue and content; without a message id, or without the body, it always
runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from tarry.client.attempt import Attempt


class MemoryDeduplicator:
    """Remembers in memory what this process completed, up to `most` attempts; the oldest are forgotten.

    This is enough for duplicates that follow a lost connection. If the same attempt is delivered again while it is
    being processed, the second delivery waits for the outcome: of another thread with `once`, of another task with
    `once_async`.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._threads: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._tasks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def once(self, attempt: Attempt) -> Iterator[bool]:
        """Yields True if the work has to be done, False if it was done before. If the block raises, it counts as not
        done.
        """
        key = attempt.key
        with self._lock:
            turn = self._threads.setdefault(key, threading.Lock()) if key else threading.Lock()
        with turn:
            todo = key not in self._done
            yield todo
            self._remember(key)

    @asynccontextmanager
    async def once_async(self, attempt: Attempt) -> AsyncIterator[bool]:
        """The same as `once`, for tasks of one event loop."""
        key = attempt.key
        turn = self._tasks.setdefault(key, asyncio.Lock()) if key else asyncio.Lock()
        async with turn:
            todo = key not in self._done
            yield todo
            self._remember(key)

    def _remember(self, key: str | None) -> None:
        with self._lock:
            if key is not None:
                self._done[key] = None
            while len(self._done) > self._most:
                self._done.popitem(last=False)

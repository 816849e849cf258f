"""Once and only once: for handlers that cannot bear the rare duplicate of an at-least-once delivery.

A guard remembers which attempts were dealt with, by retry id and round; a retry is another attempt, and runs. A first
delivery is known by message id, queue and content; without an id, or without the body, it is never held back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from tarry.client.attempt import Attempt


class MemoryGuard:
    """Knows what this process did, and forgets the oldest: enough for duplicates that follow a cut connection.

    A second delivery of what is being worked on waits for the outcome: of another thread with `once`, of another task
    with `once_async`.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._threads: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._tasks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def once(self, attempt: Attempt) -> Iterator[bool]:
        """True where the work is to be done; False where it was. If the block raises, it was not."""
        key = attempt.key
        with self._lock:
            turn = self._threads.setdefault(key, threading.Lock()) if key else threading.Lock()
        with turn:
            todo = key not in self._done
            yield todo
            self._remember(key)

    @asynccontextmanager
    async def once_async(self, attempt: Attempt) -> AsyncIterator[bool]:
        """The same for tasks of one event loop."""
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

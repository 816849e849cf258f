"""The same call twice is one call: answers kept by the caller's key, in Postgres, so that a restart forgets none."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta

from tarry.control.books import Books
from tarry.errors import ConflictError

KEEP = timedelta(days=1)
SWEEP_EVERY = 600.0
"""Seconds between looks for calls that are too old."""


class ReusedKeyError(ConflictError):
    """The key belongs to another call."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller was told."""

    status: int
    media_type: str
    body: bytes


@dataclass(slots=True)
class Calls:
    """Keys and answers."""

    books: Books
    lease: timedelta
    """A call that is not over after so long was cut off: longer than any call may take."""
    _swept: float = field(default=float("-inf"))

    async def begin(self, caller: str, key: str, fingerprint: str) -> Answer | None:
        """None: go ahead. An answer: it was given before. Raises ConflictError while the first one is under way."""
        await self._sweep()
        names = {"caller": caller, "key": key}
        if await self.books.one("begin_call", **names, fingerprint=fingerprint, keep=KEEP, lease=self.lease):
            return None
        known = await self.books.one("known_call", **names)
        if known is None or (known[0] == fingerprint and known[1] is None):
            raise ConflictError(f"The call with the key {key!r} is under way. Ask again in a moment for its answer.")
        if known[0] != fingerprint:
            raise ReusedKeyError(f"The key {key!r} was used for another call. Every call needs a key of its own.")
        return Answer(known[1], known[2], bytes(known[3]))

    async def finish(self, caller: str, key: str, fingerprint: str, answer: Answer) -> None:
        await self.books.change(
            "finish_call",
            caller=caller,
            key=key,
            fingerprint=fingerprint,
            status=answer.status,
            media_type=answer.media_type,
            body=answer.body,
        )

    async def drop(self, caller: str, key: str, fingerprint: str) -> None:
        await self.books.change("drop_call", caller=caller, key=key, fingerprint=fingerprint)

    async def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept > SWEEP_EVERY:
            self._swept = now
            await self.books.change("forget_calls", keep=KEEP)

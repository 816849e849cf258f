"""Idempotency keys: a repeated call gets the reply of the first. Replies are in Postgres and survive a restart."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta

from tarry.errors import ConflictError
from tarry.store.database import PostgresPool

KEEP = timedelta(days=1)
SWEEP_EVERY = 600.0
"""Seconds between two deletions of calls that are too old."""


class ReusedKeyError(ConflictError):
    """The key was used for another call."""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The reply that a caller got."""

    status: int
    media_type: str
    body: bytes


@dataclass(slots=True)
class IdempotencyKeys:
    """The idempotency keys and the stored replies."""

    store: PostgresPool
    lease: timedelta
    """A call that is not finished after this time was interrupted; longer than any call may take."""
    _swept: float = field(default=float("-inf"))

    async def begin(self, caller: str, key: str, fingerprint: str) -> StoredReply | None:
        """None if the call is to be made; the stored reply if it was made before.

        Raises ConflictError while the first call is in progress, ReusedKeyError if the key was used for another call.
        """
        await self._sweep()
        names = {"caller": caller, "key": key}
        if await self.store.one("begin_call", **names, fingerprint=fingerprint, keep=KEEP, lease=self.lease):
            return None
        known = await self.store.one("known_call", **names)
        if known is None or (known[0] == fingerprint and known[1] is None):
            raise ConflictError(
                f"The call with the key {key!r} is in progress. Repeat it in a moment to get the response."
            )
        if known[0] != fingerprint:
            raise ReusedKeyError(f"The key {key!r} was used for another call. Every call needs a key of its own.")
        return StoredReply(known[1], known[2], bytes(known[3]))

    async def finish(self, caller: str, key: str, fingerprint: str, answer: StoredReply) -> None:
        await self.store.change(
            "finish_call",
            caller=caller,
            key=key,
            fingerprint=fingerprint,
            status=answer.status,
            media_type=answer.media_type,
            body=answer.body,
        )

    async def drop(self, caller: str, key: str, fingerprint: str) -> None:
        await self.store.change("drop_call", caller=caller, key=key, fingerprint=fingerprint)

    async def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept > SWEEP_EVERY:
            self._swept = now
            await self.store.change("forget_calls", keep=KEEP)

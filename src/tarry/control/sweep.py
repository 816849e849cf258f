"""The sweeper: goes on with cancels and retry-nows whose caller has gone, and unbinds what has done its work.

Every service runs it; whoever has the lock sweeps.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import structlog

from tarry.control.beside import now_and_then
from tarry.control.desk import Desk
from tarry.control.divert import Diversion, bind, decide, end
from tarry.errors import BrokerError, BrokerUnreachableError, ControlError

log = structlog.get_logger()

LOCK = 7312004
EVERY = 2.0
LEFT_FOR = timedelta(seconds=30)
"""Longer than any caller waits."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one pass did."""

    finished: int = 0
    ended: int = 0


async def run(desk: Desk, stop: asyncio.Event, *, every: float = EVERY) -> None:
    """Until `stop` is set."""
    await now_and_then("sweeping cancels", lambda: sweep(desk), stop, every)


async def sweep(desk: Desk, *, left_for: timedelta = LEFT_FOR) -> Swept:
    """One pass; nothing if another process has the lock."""
    async with desk.books.lock(LOCK) as page:
        if page is None:
            return Swept()
        return Swept(await _finish(desk, left_for), await _end(desk))


async def _finish(desk: Desk, left_for: timedelta) -> int:
    rows = await desk.books.rows("unfinished_diversions", left_for=left_for)
    return sum([await _try(desk, Diversion(*row)) for row in rows])


async def _try(desk: Desk, diversion: Diversion) -> bool:
    """One that cannot be finished must not keep others from it."""
    try:
        return await _go_on(desk, diversion)
    except (ControlError, BrokerError) as error:
        if isinstance(error, BrokerUnreachableError):
            raise
        log.warning("could not go on with it", kind=diversion.kind, retry_id=diversion.retry_id, reason=str(error))
        return False


async def _go_on(desk: Desk, diversion: Diversion) -> bool:
    """As its caller would have; but a sweeper does not wait for a word, it comes again."""
    word: str | None = "diverted" if await bind(desk, diversion) else await _word(desk, diversion)
    verdict = await decide(desk, diversion, word)
    if verdict == "pending":
        return False
    log.info("went on with what was left", kind=diversion.kind, retry_id=diversion.retry_id, verdict=verdict)
    return True


async def _word(desk: Desk, diversion: Diversion) -> str | None:
    row = await desk.books.one("words", ids=[diversion.id])
    return row[1] if row else None


async def _end(desk: Desk) -> int:
    rows = await desk.books.rows("diversions_to_end", linger=desk.limits.linger)
    for row in rows:
        await end(desk, Diversion(*row))
    return len(rows)

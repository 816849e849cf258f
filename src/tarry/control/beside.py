"""What runs beside the router for as long as the service does: a look now and then, and trouble told once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
from pika.exceptions import AMQPError

from tarry.broker.link import say
from tarry.errors import TarryError

log = structlog.get_logger()


async def now_and_then(what: str, look: Callable[[], Awaitable[object]], stop: asyncio.Event, every: float) -> None:
    """Until `stop` is set. Trouble with broker or Postgres is told when it begins, and the next look tries again."""
    told: str | None = None
    while not stop.is_set():
        try:
            await look()
        except (TarryError, OSError, AMQPError) as error:
            reason = say(error) if isinstance(error, AMQPError) else str(error) or type(error).__name__
            if reason != told:
                log.warning("cannot do it now, trying again", what=what, reason=reason)
            told = reason
        else:
            told = None
        await sleep_unless(stop, every)


async def sleep_unless(stop: asyncio.Event, seconds: float) -> None:
    """Wakes at once when it is time to stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()

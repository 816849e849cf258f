"""Keeping a part of the service alive: run it, and when it ends run it again, a little later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from pika.exceptions import AMQPError

from tarry.errors import TarryError

log = structlog.get_logger()

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
SETTLED = 30.0
"""Seconds that a part must have run for its next pause to be short again."""


async def keep(
    part: str, run: Callable[[], Awaitable[str]], stop: asyncio.Event, on_restart: Callable[[str], None]
) -> None:
    """Until `stop` is set. `run` returns the reason for its end, or raises it."""
    pause = FIRST_PAUSE
    while True:
        started = asyncio.get_running_loop().time()
        try:
            reason = await run()
        except (TarryError, AMQPError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        if stop.is_set():
            return
        if asyncio.get_running_loop().time() - started > SETTLED:
            pause = FIRST_PAUSE
        log.warning("connection lost, trying again", part=part, reason=reason, pause=pause)
        on_restart(part)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)

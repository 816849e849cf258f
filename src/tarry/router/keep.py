"""Keeping a part of the service alive: run it, and when it ends run it again, a little later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from pika.exceptions import AMQPError

from tarry.broker.link import say
from tarry.errors import BrokerError, BrokerUnreachableError, TarryError

log = structlog.get_logger()

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
SETTLED = 30.0
"""Seconds that a part must have run for its next pause to be short again."""


async def keep(
    part: str, run: Callable[[], Awaitable[str]], stop: asyncio.Event, on_restart: Callable[[str], None]
) -> None:
    """Until `stop` is set. `run` returns the reason for its end, or raises it.

    A refusal at the very first try is raised: somebody has to mend a right, and should hear of it at once.
    """
    pause, tries = FIRST_PAUSE, 0
    clock = asyncio.get_running_loop().time
    while not stop.is_set():
        started = clock()
        tries += 1
        try:
            reason = await run()
        except (TarryError, OSError) as error:
            if tries == 1 and isinstance(error, BrokerError) and not isinstance(error, BrokerUnreachableError):
                raise
            reason = str(error) or type(error).__name__
        except AMQPError as error:
            reason = say(error)
        if stop.is_set():
            return
        if clock() - started > SETTLED:
            pause = FIRST_PAUSE
        log.warning("connection lost, trying again", part=part, reason=reason, pause=pause)
        on_restart(part)
        await sleep_unless(stop, pause)
        pause = min(pause * 2, LONGEST_PAUSE)


async def sleep_unless(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, but wake at once when it is time to stop; True if it is."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True


async def either(one: Coroutine[Any, Any, object], other: asyncio.Future[Any]) -> None:
    """Until one of the two has ended; the second is left as it is."""
    waiting = asyncio.ensure_future(one)
    try:
        await asyncio.wait([waiting, other], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()

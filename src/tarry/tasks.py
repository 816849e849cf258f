"""Helpers for asyncio tasks: work in a thread, restarts with backoff, periodic runs, and interruptible sleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog
from pika.exceptions import AMQPError

from tarry.amqp.connection import describe_error
from tarry.errors import BrokerError, BrokerUnreachableError, TarryError

log = structlog.get_logger()

T = TypeVar("T")


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Like `asyncio.to_thread`, but in a daemon thread: a call that hangs does not keep the process from exiting."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type] # one of the two is given

    def run() -> None:
        try:
            value, error = work(), None
        except Exception as problem:  # noqa: BLE001 - raised in the event loop
            value, error = None, problem
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await answer


FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
SETTLED = 30.0
"""Seconds that a part must run before its next restart uses the shortest pause again."""


async def keep(
    part: str, run: Callable[[], Awaitable[str]], stop: asyncio.Event, on_restart: Callable[[str], None]
) -> None:
    """Run a part and restart it with backoff until `stop` is set. `run` returns the reason for its end, or raises it.

    A refusal by the broker on the first attempt is raised: an operator must fix a permission or a setting, and should
    learn of it at once.
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
            reason = describe_error(error)
        if stop.is_set():
            return
        if clock() - started > SETTLED:
            pause = FIRST_PAUSE
        log.warning("connection lost, trying again", part=part, reason=reason, pause=pause)
        on_restart(part)
        await sleep_unless(stop, pause)
        pause = min(pause * 2, LONGEST_PAUSE)


async def now_and_then(what: str, look: Callable[[], Awaitable[object]], stop: asyncio.Event, every: float) -> None:
    """Runs `look` periodically until `stop` is set.

    An error of the broker or Postgres is logged when it begins or changes, and the next run tries again.
    """
    last_reason: str | None = None
    while not stop.is_set():
        try:
            await look()
        except (TarryError, OSError, AMQPError) as error:
            reason = describe_error(error) if isinstance(error, AMQPError) else str(error) or type(error).__name__
            if reason != last_reason:
                log.warning("background task failed, trying again", what=what, reason=reason)
            last_reason = reason
        else:
            last_reason = None
        await sleep_unless(stop, every)


async def sleep_unless(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, but wake at once if `stop` is set; True if it is."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True


async def either(one: Coroutine[Any, Any, object], other: asyncio.Future[Any]) -> None:
    """Wait until either has completed, then cancel `one`; `other` is left as it is."""
    waiting = asyncio.ensure_future(one)
    try:
        await asyncio.wait([waiting, other], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()

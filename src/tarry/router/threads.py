"""Blocking work beside the loop, in a thread that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Like `asyncio.to_thread`, but a call that hangs does not keep the process from ending."""
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
        except Exception as problem:  # noqa: BLE001 - raised in the loop
            value, error = None, problem
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await answer

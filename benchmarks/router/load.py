"""Requests to work on: 512 bytes of body, the headers of the contract, an id for each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

from benchmarks.router.stage import ORIGIN, Space
from tarry.amqp.field_tables import entry
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome

BODY = bytes(range(256)) * 2
_numbers = itertools.count()


def headers_for(queue: str) -> bytes:
    return b"".join(
        (
            entry("original_queue", queue),
            entry("retry_count", 0),
            entry("error_type", "Timeout"),
            entry("error_reason", "the other side took too long"),
        )
    )


HEADERS = headers_for(ORIGIN)


def request(more: bytes = b"", origin: str = ORIGIN) -> Message:
    """Into the intake, the one exchange that leads to the request queue; with more headers, encoded."""
    number = next(_numbers)
    headers = HEADERS if origin == ORIGIN else headers_for(origin)
    properties = Properties(headers=headers + more, delivery_mode=PERSISTENT, message_id=b"m-%d" % number)
    return Message("retry.intake", origin, properties, BODY, f"m-{number}")


async def fill(
    space: Space, count: int, more: Callable[[], bytes] = bytes, origins: Iterator[str] | None = None
) -> None:
    """So many requests, confirmed. `more` makes more headers for each; `origins` are their queues."""
    publisher = await Publisher.open(space.address, "benchmark: load")
    try:
        for start in range(0, count, 1000):
            await send(publisher, min(1000, count - start), more, origins)
    finally:
        await publisher.link.close()


async def send(
    publisher: Publisher, count: int, more: Callable[[], bytes] = bytes, origins: Iterator[str] | None = None
) -> None:
    queues = itertools.repeat(ORIGIN) if origins is None else origins
    outcomes = await publisher.publish([request(more(), queue) for queue in itertools.islice(queues, count)])
    if set(outcomes) - {PublishOutcome.CONFIRMED}:
        raise RuntimeError(f"the broker did not take every request: {set(outcomes)}")


async def paced(publisher: Publisher, per_second: int, seconds: float) -> AsyncIterator[int]:
    """Steadily, in steps of twenty milliseconds; yields how many were sent so far."""
    loop = asyncio.get_running_loop()
    started, sent = loop.time(), 0
    while sent < per_second * seconds:
        due = min(int((loop.time() - started) * per_second) + 1, int(per_second * seconds))
        if due > sent:
            await send(publisher, due - sent)
            sent = due
            yield sent
        await asyncio.sleep(0.02)

"""Reads the stream of events, from any point that it still holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from pika.exceptions import ChannelClosedByBroker

from tarry.amqp.consumer import Consumer
from tarry.amqp.declare import ACCESS_REFUSED, NOT_FOUND, refusal
from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import pick
from tarry.amqp.url import Address
from tarry.core.names import Names
from tarry.core.queue_scope import QueueScope
from tarry.errors import BrokerError, BrokerUnreachableError, NotFoundError
from tarry.events.cloudevent import Event

OFFSET = "x-stream-offset"
_OFFSET = OFFSET.encode()
PREFETCH = 1_000
BATCH = 200

FIRST_WITHIN = 3.0
"""Seconds to wait for the first event of a stream, which may be empty."""

QUIET = 0.25
"""Seconds without another event after which the newest is known: the broker delivers the last chunk at once."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are wanted."""

    since: datetime | None = None
    after: int | None = None
    """Only those after this offset."""
    queue: str | None = None
    """A queue, or a glob."""
    states: frozenset[str] = frozenset()
    """States or short types; empty for all."""
    scope: QueueScope | None = None
    """Only events about these queues."""
    follow: bool = False
    """Waits for new events, and begins with them unless `since` or `after` is given."""

    @property
    def start(self) -> str | int | datetime:
        """The consumer argument `x-stream-offset`."""
        if self.after is not None:
            return self.after + 1
        if self.since is not None:
            return self.since
        return "next" if self.follow else "first"

    def wants(self, offset: int, event: Event) -> bool:
        """The broker begins with the chunk that contains the wanted event, so earlier ones arrive too."""
        if self.after is not None and offset <= self.after:
            return False
        if self.since is not None and event.time < self.since:
            return False
        return self._wants_state(event) and self._wants_queue(event.queue)

    def _wants_state(self, event: Event) -> bool:
        return not self.states or not self.states.isdisjoint((event.state, event.word))

    def _wants_queue(self, queue: str | None) -> bool:
        """The queue of a pause may be a glob: a scope must contain all that it matches."""
        if self.queue is not None and not (queue is not None and fnmatchcase(queue, self.queue)):
            return False
        return self.scope is None or (queue is not None and self.scope.covers(queue))


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event, and its place in the stream."""

    offset: int
    event: Event

    def as_json(self) -> dict[str, Any]:
        return self.event.as_json()


async def read_events(address: Address, names: Names, wanted: EventFilter) -> AsyncGenerator[StreamedEvent, None]:
    """Opens the stream, and returns an iterator over its events; without `follow`, to the last one at the start."""
    end = None if wanted.follow else await _last_offset(address, names)
    if not wanted.follow and end is None:
        return _nothing()
    consumer = await _open(address, names, wanted.start)
    return _Reading(consumer, _iterate(consumer, wanted, end))


class _Reading(AsyncGenerator[StreamedEvent, None]):
    """Closes the connection even if nothing was read: a generator that was never started does not."""

    def __init__(self, consumer: Consumer, events: AsyncGenerator[StreamedEvent, None]) -> None:
        self._consumer = consumer
        self._events = events

    async def asend(self, value: None) -> StreamedEvent:
        return await self._events.asend(value)

    async def athrow(self, *error: Any) -> StreamedEvent:
        return await self._events.athrow(*error)

    async def aclose(self) -> None:
        try:
            with suppress(RuntimeError):  # a task that was cancelled while it read is closing it
                await self._events.aclose()
        finally:
            await self._consumer.link.close()


async def _nothing() -> AsyncGenerator[StreamedEvent, None]:
    for one in list[StreamedEvent]():
        yield one


async def _open(address: Address, names: Names, start: str | int | datetime) -> Consumer:
    queue = names.events_stream
    try:
        return await Consumer.open(
            address, queue, "events: read", batch=BATCH, prefetch=PREFETCH, arguments={OFFSET: start}
        )
    except ChannelClosedByBroker as error:
        if error.reply_code == NOT_FOUND:
            raise NotFoundError(
                f"There is no stream {queue}: set `enabled = true` under [events] in tarry.toml, run "
                "`tarry topology apply`, and restart the service."
            ) from error
        if error.reply_code == ACCESS_REFUSED:
            raise refusal(address, error.reply_code, error.reply_text) from error
        raise BrokerError(f"{address} refused to read {queue}: {error.reply_text}") from error


async def _last_offset(address: Address, names: Names) -> int | None:
    """The offset of the newest event; None if the stream is empty."""
    consumer = await _open(address, names, "last")
    batches, found = consumer.batches(), None
    try:
        while (batch := await _next(batches, consumer, FIRST_WITHIN if found is None else QUIET)) is not None:
            found = max(map(_offset_of, batch))
    finally:
        await consumer.link.close()
    return found


async def _iterate(consumer: Consumer, wanted: EventFilter, end: int | None) -> AsyncGenerator[StreamedEvent, None]:
    batches, patience = consumer.batches(), None if wanted.follow else FIRST_WITHIN
    try:
        while (batch := await _next(batches, consumer, patience)) is not None:
            for delivery in batch:
                offset, event = _offset_of(delivery), Event.read(delivery.properties, delivery.body)
                if event is not None and wanted.wants(offset, event):
                    yield StreamedEvent(offset, event)
                if end is not None and offset >= end:
                    return
            consumer.ack([delivery.tag for delivery in batch])
    finally:
        await consumer.link.close()


async def _next(
    batches: AsyncIterator[list[Delivery]], consumer: Consumer, patience: float | None
) -> list[Delivery] | None:
    """None if nothing arrives in time, which ends the iterator; raises if the connection is lost."""
    try:
        async with asyncio.timeout(patience):
            return await anext(batches)
    except TimeoutError:
        return None
    except StopAsyncIteration:
        closed = consumer.link.closed
        reason = closed.result() if closed.done() else "the connection was lost"
        raise BrokerUnreachableError(f"The stream of events ended: {reason}.") from None


def _offset_of(delivery: Delivery) -> int:
    found = pick(delivery.properties.headers or b"", {_OFFSET}).get(_OFFSET)
    return (found.integer() if found is not None else None) or 0

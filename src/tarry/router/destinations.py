"""The way home: an origin queue is bound the first time it is seen; one that is not there is for a person to settle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.broker.address import Address
from tarry.broker.link import Link, say
from tarry.core.names import Destination, Names
from tarry.errors import BrokerUnreachableError

log = structlog.get_logger()

ACCESS_REFUSED = 403
NOT_FOUND = 404

MISSING_FOR = 2.0
"""Seconds that a queue once found missing is taken for missing: each look costs a channel."""

MOST_MISSING = 10_000
"""Names that are remembered: requests can make up any number of them."""


@dataclass(slots=True)
class Destinations:
    """Destinations known to be bound; each is bound once per process, on a connection of its own."""

    address: Address
    names: Names
    clock: Callable[[], float]
    _bound: set[Destination] = field(default_factory=set)
    _unbindable: set[Destination] = field(default_factory=set)
    """The broker does not let us bind these: we rely on `tarry attach`."""
    _missing: dict[Destination, tuple[float, str]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _link: Link | None = None

    async def __call__(self, destination: Destination) -> str | None:
        """None if it can be reached, as far as we may know; else the reason, for review."""
        if destination in self._bound or destination.kind == "exchange" or destination in self._unbindable:
            # An exchange is only ever bound by `tarry attach`, which looks at what else is bound to it. A destination
            # that nobody attached comes to retry.unroutable when its message is due, and is not lost.
            return None
        reason = await self._bind_once(destination)
        return None if destination in self._unbindable else reason

    async def again(self, destination: Destination) -> str | None:
        """It was not reachable: its queue may have been deleted and declared anew, which loses the binding."""
        self._bound.discard(destination)
        self._unbindable.discard(destination)
        return await self._bind_once(destination)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _bind_once(self, destination: Destination) -> str | None:
        async with self._lock:
            if destination in self._bound:
                return None
            until, reason = self._missing.get(destination, (0.0, ""))
            return reason if self.clock() < until else await self._bind(destination)

    async def _bind(self, destination: Destination) -> str | None:
        link = await self._ready()
        name, key = destination.name, destination.key
        try:
            await link.answer(lambda done: link.channel.queue_bind(name, self.names.deliver, key, callback=done))
        except ChannelClosedByBroker as closed:
            return self._refused(destination, closed)
        except AMQPError as error:
            raise BrokerUnreachableError(f"The broker went away while {name!r} was bound: {say(error)}") from error
        self._bound.add(destination)
        self._missing.pop(destination, None)
        return None

    def _refused(self, destination: Destination, closed: ChannelClosedByBroker) -> str:
        if closed.reply_code == ACCESS_REFUSED:
            log.warning("may not bind, relying on attach", queue=destination.name, broker=closed.reply_text)
            if len(self._unbindable) >= MOST_MISSING:
                self._unbindable.clear()
            self._unbindable.add(destination)
            return f"the router may not bind {destination.name!r}: run `tarry attach {destination.name}`"
        if closed.reply_code == NOT_FOUND:
            reason = f"the origin queue {destination.name!r} does not exist"
        else:
            reason = f"the broker would not bind {destination.name!r}: {closed.reply_text}"
        if len(self._missing) >= MOST_MISSING:
            self._missing.clear()
        self._missing[destination] = (self.clock() + MISSING_FOR, reason)
        return reason

    async def _ready(self) -> Link:
        if self._link is None or self._link.closed.done():
            self._link = await Link.open(self.address, "binder")
        elif not self._link.channel.is_open:
            await self._link.reopen_channel()
        return self._link

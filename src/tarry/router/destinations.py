"""Binds each origin queue the first time it is seen; messages whose origin queue does not exist go to review."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.amqp.connection import AmqpConnection, describe_error
from tarry.amqp.url import Address
from tarry.core.names import Destination, Names
from tarry.errors import BrokerUnreachableError

log = structlog.get_logger()

ACCESS_REFUSED = 403
NOT_FOUND = 404

MISSING_FOR = 2.0
"""Seconds for which a queue found missing is assumed to be missing: each check costs a channel."""

MOST_MISSING = 10_000
"""Limit of the names remembered: requests can contain any number of invented names."""

MOST_BOUND = 50_000
"""Limit of the destinations remembered: queues can be created and deleted for years. One that is forgotten is bound
again when it is seen again."""


@dataclass(slots=True)
class Destinations:
    """Destinations known to be bound. Each is bound once per process, on a separate connection."""

    address: Address
    names: Names
    clock: Callable[[], float]
    _bound: set[Destination] = field(default_factory=set)
    _unbindable: set[Destination] = field(default_factory=set)
    """The router has no permission to bind these and relies on `tarry attach`."""
    _missing: dict[Destination, tuple[float, str]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _link: AmqpConnection | None = None

    async def ensure_bound(self, destination: Destination) -> str | None:
        """None if the destination can be reached, as far as the router can know; otherwise the reason, for review."""
        if destination in self._bound or destination.kind == "exchange" or destination in self._unbindable:
            # Only `tarry attach` binds an exchange, because it checks what else is bound to it. A message for a
            # destination that is not attached goes to retry.unroutable when it is due, and is not lost.
            return None
        reason = await self._bind_once(destination)
        return None if destination in self._unbindable else reason

    async def bind_again(self, destination: Destination) -> str | None:
        """Binds an unreachable destination again: a queue that was deleted and redeclared has lost its binding."""
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
            raise BrokerUnreachableError(
                f"The connection to the broker was lost while {name!r} was bound: {describe_error(error)}"
            ) from error
        while len(self._bound) >= MOST_BOUND:
            self._bound.pop()
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
            reason = f"the broker refused to bind {destination.name!r}: {closed.reply_text}"
        if len(self._missing) >= MOST_MISSING:
            self._missing.clear()
        self._missing[destination] = (self.clock() + MISSING_FOR, reason)
        return reason

    async def _ready(self) -> AmqpConnection:
        if self._link is None or self._link.closed.done():
            self._link = await AmqpConnection.open(self.address, "binder")
        elif not self._link.channel.is_open:
            await self._link.reopen_channel()
        return self._link

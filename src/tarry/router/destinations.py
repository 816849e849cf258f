"""The way home: an origin queue is bound the first time it is seen; one that is not there is for a person to settle."""

from __future__ import annotations

import asyncio

import structlog
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tarry.broker.address import Address
from tarry.broker.link import Link
from tarry.core.names import Destination, Names
from tarry.errors import BrokerUnreachableError

log = structlog.get_logger()

ACCESS_REFUSED = 403
NOT_FOUND = 404


class Destinations:
    """Destinations known to be bound; each is bound once per process."""

    def __init__(self, address: Address, names: Names) -> None:
        self._address = address
        self._names = names
        self._known: set[Destination] = set()
        self._lock = asyncio.Lock()
        self._link: Link | None = None

    async def __call__(self, destination: Destination) -> str | None:
        """None if it can be reached; else the reason, for review."""
        if destination in self._known or destination.kind == "exchange":
            # An exchange is only ever bound by `tarry attach`, which looks at what else is bound to it.
            return None
        async with self._lock:
            if destination in self._known:
                return None
            reason = await self._bind(destination)
            if reason is None:
                self._known.add(destination)
            return reason

    def forget(self, destination: Destination) -> None:
        """It turned out not to be reachable: look again next time."""
        self._known.discard(destination)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _bind(self, destination: Destination) -> str | None:
        link = await self._ready()
        bound: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answer(error: BaseException | None) -> None:
            if not bound.done():
                bound.set_result(None) if error is None else bound.set_exception(error)

        link.channel.add_on_close_callback(lambda _, error: answer(error))
        link.channel.queue_bind(destination.name, self._names.deliver, destination.key, callback=lambda _: answer(None))
        try:
            await bound
        except ChannelClosedByBroker as closed:
            return self._refused(destination, closed)
        except AMQPError as error:
            raise BrokerUnreachableError(
                f"The broker went away while {destination.name!r} was bound: {error!r}"
            ) from error
        return None

    def _refused(self, destination: Destination, closed: ChannelClosedByBroker) -> str | None:
        if closed.reply_code == NOT_FOUND:
            return f"the origin queue {destination.name!r} does not exist"
        if closed.reply_code == ACCESS_REFUSED:
            # A router without the right to bind relies on `tarry attach`; if that was forgotten, the message
            # comes to retry.unroutable when it is due, and is not lost.
            log.warning("may not bind, relying on attach", queue=destination.name, broker=closed.reply_text)
            return None
        return f"the broker would not bind {destination.name!r}: {closed.reply_text}"

    async def _ready(self) -> Link:
        if self._link is None or self._link.closed.done():
            self._link = await Link.open(self._address, "binder")
        elif not self._link.channel.is_open:
            await self._link.reopen_channel()
        return self._link

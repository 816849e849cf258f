"""One connection with one channel, as a thing to await. It does not heal: whoever uses it opens a new one."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pika.channel import Channel
from pika.exceptions import AMQPError

from tarry.broker.address import Address
from tarry.broker.wire import RawConnection
from tarry.errors import BrokerError, BrokerUnreachableError

T = TypeVar("T")
OPEN_TIMEOUT = 20.0
CLOSE_TIMEOUT = 5.0


class Link:
    """An open channel on a connection of its own."""

    def __init__(self, connection: RawConnection, gone: asyncio.Future[str]) -> None:
        self._connection = connection
        self._gone = gone
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, once the connection or the channel is gone."""
        gone.add_done_callback(lambda done: _resolve(self.closed, done.result()))
        self.blocked = False
        """Whether the broker has an alarm and takes no publishes."""
        self.channel: Channel
        connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))

    @classmethod
    async def open(cls, address: Address, purpose: str) -> Link:
        """Connect and open a channel, or say why not."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        gone: asyncio.Future[str] = loop.create_future()
        connection = RawConnection(
            address.parameters(purpose),
            on_open_callback=lambda _: _resolve(opened, None),
            on_open_error_callback=lambda _, error: _fail(opened, _refused(address, error)),
            on_close_callback=lambda _, error: _resolve(gone, _say(error)),
        )
        await asyncio.wait_for(opened, OPEN_TIMEOUT)
        link = cls(connection, gone)
        await link.reopen_channel()
        return link

    async def reopen_channel(self) -> None:
        """A new channel on the same connection; the broker closes one for a single mistake."""
        opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        channel = self._connection.channel(on_open_callback=lambda channel: _resolve(opened, channel))
        channel.add_on_close_callback(lambda _, error: _fail(opened, BrokerError(_say(error))))
        self.channel = await asyncio.wait_for(self._or_closed(opened), OPEN_TIMEOUT)

    def closes_with_channel(self) -> None:
        """From here on a closed channel ends the link too."""
        self.channel.add_on_close_callback(lambda _, error: _resolve(self.closed, _say(error)))
        self.channel.add_on_cancel_callback(lambda _: _resolve(self.closed, "the broker cancelled the consumer"))

    def end(self, reason: str) -> None:
        """Call it over, as if the broker had closed it."""
        _resolve(self.closed, reason)

    @property
    def frame_max(self) -> int:
        return int(self._connection.params.frame_max)

    @property
    def is_open(self) -> bool:
        return not self.closed.done() and self.channel.is_open

    async def close(self) -> None:
        if not (self._connection.is_closed or self._connection.is_closing):
            self._connection.close()
        await asyncio.wait([self._gone], timeout=CLOSE_TIMEOUT)

    async def _or_closed(self, wanted: asyncio.Future[T]) -> T:
        """The wanted answer, or an error as soon as the connection is gone."""
        both: list[asyncio.Future[T] | asyncio.Future[str]] = [wanted, self._gone]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            wanted.cancel()
            raise BrokerUnreachableError(f"The connection ended: {self._gone.result()}.")
        return wanted.result()

    def _set_blocked(self, blocked: bool) -> None:  # noqa: FBT001 - set from a callback
        self.blocked = blocked


def _refused(address: Address, error: BaseException | str) -> BrokerError:
    return BrokerUnreachableError(f"No broker answers at {address}: {_say(error)}.")


def _say(error: BaseException | str) -> str:
    if isinstance(error, AMQPError) and error.args:
        inner = error.args[0]
        return str(getattr(inner, "exception", inner)) if isinstance(inner, BaseException) else repr(error)
    return str(error) or type(error).__name__


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

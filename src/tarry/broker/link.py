"""One connection with one channel, as a thing to await. It does not heal: whoever uses it opens a new one."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pika.channel import Channel
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tarry.broker.address import Address
from tarry.broker.tls import distrusted
from tarry.broker.wire import RawConnection
from tarry.errors import BrokerError, BrokerUnreachableError

T = TypeVar("T")
OPEN_TIMEOUT = 20.0
ANSWER_TIMEOUT = 20.0
CLOSE_TIMEOUT = 1.5

GIVEN_UP = 1.5
"""Heartbeats without a byte. The broker sends one each half a heartbeat, and gives us up no sooner than one and a half
after it could have last heard of us: so whoever was given up has heard nothing for at least so long."""


class Link:
    """An open channel on a connection of its own."""

    channel: Channel

    def __init__(self, address: Address, purpose: str) -> None:
        self._address = address
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str] = loop.create_future()
        """Done, with the reason, once the connection or the channel is gone, or its user has given it up."""
        self._opened: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[str] = loop.create_future()
        self._gone.add_done_callback(lambda done: self.end(done.result()))
        self._asked: set[asyncio.Future[None]] = set()
        self._has_channel = False
        self.error: BaseException | None = None
        """What the channel ended with, once it has."""
        self.blocked = False
        """Whether the broker has an alarm and takes no publishes."""
        self.connection = RawConnection(
            address.parameters(purpose),
            on_open_callback=lambda _: _resolve(self._opened, None),
            on_open_error_callback=lambda _, error: self._not_opened(error),
            on_close_callback=lambda _, error: _resolve(self._gone, say(error)),
        )
        self._heard = time.monotonic()
        self.connection.on_bytes = self._hear
        self.connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        self.connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))

    @classmethod
    async def open(cls, address: Address, purpose: str) -> Link:
        """Connect and open a channel, or say why not."""
        link = cls(address, purpose)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                await link._opened
                link.connection.read_more_at_once()
                await link.reopen_channel()
        except TimeoutError as error:
            raise BrokerUnreachableError(f"{address} took the connection and does not answer.") from error
        finally:
            if not link.is_open:
                await link.close()
        return link

    async def reopen_channel(self) -> None:
        """A new channel on the same connection; the broker closes one for a single mistake."""
        await self.answer(self._open_channel)

    def _open_channel(self, done: Callable[[Any], None]) -> None:
        self.channel = self.connection.channel(on_open_callback=done)
        self.channel.add_on_close_callback(self._on_channel_closed)
        self._has_channel = True

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> None:
        """Until the broker has answered; the end of the channel or of the connection instead of an answer is raised.

        `ask` sends the question; it is given the callback for pika to call with the answer.
        """
        if self._gone.done():
            raise BrokerUnreachableError(f"The connection to {self._address} ended: {self._gone.result()}.")
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.add(answered)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                ask(lambda _: _resolve(answered, None))
                await answered
        except TimeoutError as error:
            raise BrokerUnreachableError(f"{self._address} does not answer.") from error
        except AMQPConnectionError as error:
            raise BrokerUnreachableError(f"The connection to {self._address} ended: {say(error)}.") from error
        finally:
            self._asked.discard(answered)

    def _on_channel_closed(self, _channel: object, error: BaseException) -> None:
        self.error = error
        for waiting in self._asked:
            _fail(waiting, error)

    def closes_with_channel(self) -> None:
        """From here on a closed channel ends the link too, and so does a consumer that the broker cancels."""
        self.channel.add_on_close_callback(lambda _, error: self.end(say(error)))
        self.channel.add_on_cancel_callback(
            lambda _: self.end("the broker cancelled the consumer: was the queue deleted?")
        )

    def end(self, reason: str) -> None:
        """Call it over."""
        _resolve(self.closed, reason)

    def given_up(self) -> bool:
        """Whether the broker may have given our deliveries to somebody else, and we cannot have been told.

        This process was frozen, or nothing passed between us. What is delivered already is not ours to act on then.
        """
        agreed: Any = self.connection.params.heartbeat
        if self._has_channel and agreed and time.monotonic() - self._heard > GIVEN_UP * agreed:
            self.end("nothing was heard from the broker for so long that it has given this connection up")
            return True
        return self.closed.done()

    def _hear(self) -> None:
        """The first bytes after a long silence come from a connection that is no more."""
        if not self.given_up():
            self._heard = time.monotonic()

    @property
    def frame_max(self) -> int:
        return int(self.connection.params.frame_max)

    @property
    def is_open(self) -> bool:
        return self._has_channel and not self.closed.done() and self.channel.is_open

    async def close(self) -> None:
        """Goodbye, if the broker still listens; a connection that does not end in time is cut."""
        self.end("closed")
        connection = self.connection
        if not (connection.is_closed or connection.is_closing):
            connection.close()
        await asyncio.wait([self._gone], timeout=CLOSE_TIMEOUT)
        if not self._gone.done():
            connection.cut()

    def _not_opened(self, error: BaseException | str) -> None:
        problem = _refused(self._address, error)
        _fail(self._opened, problem)
        _resolve(self._gone, str(problem))

    def _set_blocked(self, blocked: bool) -> None:  # noqa: FBT001 - set from a callback
        self.blocked = blocked


def _refused(address: Address, error: BaseException | str) -> BrokerError:
    """A wrong login is told apart from no answer: the one is for a person to mend, the other may pass."""
    cause = _innermost(error)
    if isinstance(cause, ProbableAuthenticationError | ProbableAccessDeniedError):
        return BrokerError(f"{address} refused the login: check user, password and vhost in RABBITMQ_URL.")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return distrusted(address, cause)
    if isinstance(cause, ConnectionClosedByBroker):
        return BrokerError(f"{address} closed the connection at once: {cause.reply_text}")
    return BrokerUnreachableError(f"No broker answers at {address}: {say(error)}.")


def _innermost(error: BaseException | str) -> BaseException | str:
    """Pika wraps what happened in what it was doing at the time."""
    seen = error
    while isinstance(seen, BaseException):
        inner = getattr(seen, "exception", None) or (seen.args[0] if seen.args else None)
        if not isinstance(inner, BaseException):
            break
        seen = inner
    return seen


def say(error: BaseException | str) -> str:
    """In one line, without pika's layers around it."""
    cause = _innermost(error)
    text = getattr(cause, "reply_text", None) or str(cause)
    return text if text and not isinstance(cause, AMQPError) else f"{type(cause).__name__}: {text}".removesuffix(": ")


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

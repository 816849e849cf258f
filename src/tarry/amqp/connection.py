"""A pika connection that leaves users' headers unchanged and moves messages in bulk.

pika decodes a header table on arrival, which damages some values and fails on others, and it writes frames one by one
to the socket. This module reads deliveries and confirms directly from the bytes, keeps the header table as bytes, and
sends a batch in a few large writes. pika does everything else (opening, closing, heartbeats, errors).
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError
from tarry.amqp.frames import CONTENT, END, HEAD, METHOD
from tarry.amqp.properties import Properties
from tarry.amqp.tls import distrusted
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError

_CONFIRM = struct.Struct(">QB")
_MULTIPLE = 1
_DELIVER, _ACK, _NACK = spec.Basic.Deliver.INDEX, spec.Basic.Ack.INDEX, spec.Basic.Nack.INDEX
_KINDS = frozenset((spec.FRAME_METHOD, spec.FRAME_HEADER, spec.FRAME_BODY, spec.FRAME_HEARTBEAT))

RECEIVE = 1 << 18
"""Bytes per read. pika's default of 4 KiB costs a system call for every few messages."""

LARGEST_WRITE = 1 << 17
"""Bytes per write. If the socket accepts only part of a write, pika copies the rest."""


class RawConnection(AsyncioConnection):
    """pika's asyncio connection with callbacks for deliveries and confirms.

    Once set, `on_delivery` receives deliveries and `on_confirm` receives confirms; pika handles all other frames.
    """

    # Attributes of pika's that its published types lack.
    _frame_buffer: bytes
    _transport: Any
    bytes_received: int
    _process_frame: Callable[[frame.Frame | frame.ProtocolHeader], None]
    _output_marshaled_frames: Callable[[list[bytes]], None]

    on_bytes: Callable[[], None] = staticmethod(lambda: None)
    """Called when bytes arrive, before they are parsed."""
    on_delivery: Callable[[Delivery], None] | None = None
    on_confirm: Callable[[int, bool, bool], None] | None = None
    """Arguments: delivery tag; whether the confirm covers all earlier tags too; True for an ack, False for a nack."""
    _coming: _Coming | None = None

    def read_more_at_once(self) -> None:
        """Enlarge pika's reads to `RECEIVE` bytes. Call it once the connection is open."""
        self._transport._MAX_RECV_BYTES = RECEIVE  # noqa: SLF001 - pika has no setting for it
        self._transport._MAX_CONSUME_BYTES = RECEIVE  # noqa: SLF001 - as above

    def cut(self) -> None:
        """Close the socket without the AMQP closing handshake, for a broker that no longer answers."""
        if self._transport is not None:
            self._transport.abort()

    def write(self, pieces: Iterable[bytes]) -> None:
        """Send complete frames, joined into few writes."""
        waiting: list[bytes] = []
        size = 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= LARGEST_WRITE:
                self._output_marshaled_frames([b"".join(waiting)])
                waiting, size = [], 0
        if waiting:
            self._output_marshaled_frames([b"".join(waiting)])

    def _on_data_available(self, data_in: bytes) -> None:
        self.on_bytes()
        data = self._frame_buffer + data_in if self._frame_buffer else data_in
        self.bytes_received += len(data_in)
        position, end = 0, len(data)
        while end - position > HEAD.size:
            kind, channel, size = HEAD.unpack_from(data, position)
            begin = position + HEAD.size
            stop = begin + size
            if kind not in _KINDS or (stop < end and data[stop] != spec.FRAME_END):
                self._frame_buffer = data[position:]
                super()._on_data_available(b"")  # type: ignore[misc] # no frame at all: pika knows what to say to that
                return
            if stop >= end:
                break
            payload = data[begin:stop]
            position = stop + 1
            if not self._take(kind, payload):
                self._give_to_pika(kind, channel, payload)
        self._frame_buffer = data[position:]

    def _take(self, kind: int, payload: bytes) -> bool:
        """Process a frame of a delivery or a confirm; False if it is neither, or has no callback."""
        if kind == spec.FRAME_METHOD:
            method = METHOD.unpack_from(payload)[0]
            if method == _DELIVER and self.on_delivery is not None:
                self._coming = _Coming(payload)
                return True
            if method in (_ACK, _NACK) and self.on_confirm is not None:
                tag, bits = _CONFIRM.unpack_from(payload, METHOD.size)
                self.on_confirm(tag, bool(bits & _MULTIPLE), method == _ACK)
                return True
            return False
        if self._coming is None or self.on_delivery is None or kind == spec.FRAME_HEARTBEAT:
            return False
        if self._coming.add(kind, payload):
            delivery, self._coming = self._coming.delivery(), None
            self.on_delivery(delivery)
        return True

    def _give_to_pika(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == spec.FRAME_HEADER:
            size, properties = _content(payload)
            self._process_frame(frame.Header(channel, size, properties))  # type: ignore[arg-type] # stands in for pika's
            return
        whole = HEAD.pack(kind, channel, len(payload)) + payload + END
        _, decoded = frame.decode_frame(whole)
        if decoded is not None:
            self._process_frame(decoded)


class _Coming:
    """A delivery of which some frames have not arrived yet."""

    __slots__ = ("_left", "_method", "_pieces", "_properties")

    def __init__(self, method: bytes) -> None:
        self._method = method
        self._pieces: list[bytes] = []
        self._properties = Properties()
        self._left = 0

    def add(self, kind: int, payload: bytes) -> bool:
        """Add a frame; True once the delivery is complete."""
        if kind == spec.FRAME_HEADER:
            self._left, self._properties = _content(payload)
        else:
            self._pieces.append(payload)
            self._left -= len(payload)
        return not self._left

    def delivery(self) -> Delivery:
        method = self._method
        place = 5 + method[4]  # after the consumer tag
        tag, redelivered = _CONFIRM.unpack_from(method, place)
        exchange, place = _short(method, place + _CONFIRM.size)
        key, _ = _short(method, place)
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return Delivery(body, self._properties, exchange, key, bool(redelivered), tag)


def _content(payload: bytes) -> tuple[int, Properties]:
    """Body size and properties of a content header frame.

    The broker checks them. If it ever passes a broken table, the result is empty properties, not an exception.
    """
    size = int(CONTENT.unpack_from(payload)[2])
    try:
        return size, Properties.decode(payload, CONTENT.size)
    except BadTableError:
        return size, Properties()


def _short(data: bytes, place: int) -> tuple[str | bytes, int]:
    """A short string and the position of its end; bytes if it is not UTF-8."""
    end = place + 1 + data[place]
    raw = data[place + 1 : end]
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end


T = TypeVar("T")
OPEN_TIMEOUT = 20.0
ANSWER_TIMEOUT = 20.0
CLOSE_TIMEOUT = 1.5

GIVEN_UP = 1.5
"""Heartbeat intervals without a received byte after which the broker may have closed the connection.

The broker sends a heartbeat every half interval, and it closes a connection no sooner than one and a half intervals
after it could last have received data. A client whose connection was closed has therefore received nothing for at least
that long."""


class AmqpConnection:
    """A connection with one open channel."""

    channel: Channel

    def __init__(self, address: Address, purpose: str) -> None:
        self._address = address
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str] = loop.create_future()
        """Completes with the reason when the connection or the channel is closed, or `end` is called."""
        self._opened: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[str] = loop.create_future()
        self._gone.add_done_callback(lambda done: self.end(done.result()))
        self._asked: set[asyncio.Future[None]] = set()
        self._has_channel = False
        self.error: BaseException | None = None
        """The error that closed the channel, if it is closed."""
        self.blocked = False
        """Whether the broker has raised a resource alarm and accepts no publishes."""
        self.connection = RawConnection(
            address.parameters(purpose),
            on_open_callback=lambda _: _resolve(self._opened, None),
            on_open_error_callback=lambda _, error: self._not_opened(error),
            on_close_callback=lambda _, error: _resolve(self._gone, describe_error(error)),
        )
        self._heard = time.monotonic()
        self.connection.on_bytes = self._hear
        self.connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        self.connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))

    @classmethod
    async def open(cls, address: Address, purpose: str) -> AmqpConnection:
        """Connect and open a channel; raises a BrokerError with the reason if that fails."""
        link = cls(address, purpose)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                await link._opened
                link.connection.read_more_at_once()
                await link.reopen_channel()
        except TimeoutError as error:
            raise BrokerUnreachableError(f"{address} accepted the connection and does not answer.") from error
        finally:
            if not link.is_open:
                await link.close()
        return link

    async def reopen_channel(self) -> None:
        """Open a new channel on the same connection; the broker closes a channel after any channel error."""
        await self.answer(self._open_channel)

    def _open_channel(self, done: Callable[[Any], None]) -> None:
        self.channel = self.connection.channel(on_open_callback=done)
        self.channel.add_on_close_callback(self._on_channel_closed)
        self._has_channel = True

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> None:
        """Wait until the broker has answered; raises if the channel or the connection closes first.

        `ask` sends the request; its argument is the callback for pika to call with the answer.
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
            raise BrokerUnreachableError(
                f"The connection to {self._address} ended: {describe_error(error)}."
            ) from error
        finally:
            self._asked.discard(answered)

    def _on_channel_closed(self, _channel: object, error: BaseException) -> None:
        self.error = error
        for waiting in self._asked:
            _fail(waiting, error)

    def closes_with_channel(self) -> None:
        """From now on, end the connection when its channel closes or the broker cancels its consumer."""
        self.channel.add_on_close_callback(lambda _, error: self.end(describe_error(error)))
        self.channel.add_on_cancel_callback(
            lambda _: self.end("the broker cancelled the consumer: was the queue deleted?")
        )

    def end(self, reason: str) -> None:
        """Complete `closed` with the reason; the first reason is kept."""
        _resolve(self.closed, reason)

    def given_up(self) -> bool:
        """Whether the broker may have redelivered our messages to another consumer without our knowledge.

        That happens after this process was frozen or the network was interrupted. Deliveries received before must then
        not be acted on.
        """
        agreed: Any = self.connection.params.heartbeat
        if self._has_channel and agreed and time.monotonic() - self._heard > GIVEN_UP * agreed:
            self.end("nothing was received from the broker for so long that it has closed this connection")
            return True
        return self.closed.done()

    def _hear(self) -> None:
        """Record that bytes arrived, unless after a long silence: the broker has then already closed the connection."""
        if not self.given_up():
            self._heard = time.monotonic()

    @property
    def frame_max(self) -> int:
        return int(self.connection.params.frame_max)

    @property
    def is_open(self) -> bool:
        return self._has_channel and not self.closed.done() and self.channel.is_open

    async def close(self) -> None:
        """Close the connection; if the broker does not answer in time, close the socket without the handshake."""
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
    """Distinguish a refused login from no answer: a person must fix the first, the second may be temporary."""
    cause = _innermost(error)
    if isinstance(cause, ProbableAuthenticationError | ProbableAccessDeniedError):
        return BrokerError(f"{address} refused the login: check user, password and vhost in RABBITMQ_URL.")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return distrusted(address, cause)
    if isinstance(cause, ConnectionClosedByBroker):
        return BrokerError(f"{address} closed the connection at once: {cause.reply_text}")
    return BrokerUnreachableError(f"No broker answers at {address}: {describe_error(error)}.")


def _innermost(error: BaseException | str) -> BaseException | str:
    """The original error: pika wraps it in errors for the operation that was running."""
    seen = error
    while isinstance(seen, BaseException):
        inner = getattr(seen, "exception", None) or (seen.args[0] if seen.args else None)
        if not isinstance(inner, BaseException):
            break
        seen = inner
    return seen


def describe_error(error: BaseException | str) -> str:
    """The original error in one line, without the errors that pika wraps around it."""
    cause = _innermost(error)
    text = getattr(cause, "reply_text", None) or str(cause)
    return text if text and not isinstance(cause, AMQPError) else f"{type(cause).__name__}: {text}".removesuffix(": ")


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

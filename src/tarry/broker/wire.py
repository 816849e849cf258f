"""A pika connection that leaves users' headers as they are, and moves messages in bulk.

pika decodes a header table on arrival, which damages some values and fails on others, and it hands the socket one small
frame at a time. Here deliveries and confirms are read straight from the bytes, with properties whose table stays bytes,
and a batch goes out in a few large writes. Everything else (opening, closing, heartbeats, errors) is pika's business.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection

from tarry.broker.frames import CONTENT, END, HEAD, METHOD
from tarry.contract.fields import BadTableError
from tarry.contract.properties import Properties
from tarry.contract.request import Delivery

_CONFIRM = struct.Struct(">QB")
_MULTIPLE = 1
_DELIVER, _ACK, _NACK = spec.Basic.Deliver.INDEX, spec.Basic.Ack.INDEX, spec.Basic.Nack.INDEX
_KINDS = frozenset((spec.FRAME_METHOD, spec.FRAME_HEADER, spec.FRAME_BODY, spec.FRAME_HEARTBEAT))

RECEIVE = 1 << 18
"""Bytes per read; pika's own 4 KiB is a system call for every few messages."""

LARGEST_WRITE = 1 << 17
"""Bytes per write: a socket that takes only part of it makes pika copy the rest."""


class RawConnection(AsyncioConnection):
    """pika's asyncio connection; `on_delivery` and `on_confirm`, once set, get what they are for, and pika the rest."""

    # Of pika's own, and not in its published types.
    _frame_buffer: bytes
    _transport: Any
    bytes_received: int
    _process_frame: Callable[[frame.Frame | frame.ProtocolHeader], None]
    _output_marshaled_frames: Callable[[list[bytes]], None]

    on_bytes: Callable[[], None] = staticmethod(lambda: None)
    """Called before anything that arrived is looked at."""
    on_delivery: Callable[[Delivery], None] | None = None
    on_confirm: Callable[[int, bool, bool], None] | None = None
    """Delivery tag, whether it speaks for all tags before it too, whether the broker took the message."""
    _coming: _Coming | None = None

    def read_more_at_once(self) -> None:
        """To be called once the connection is open."""
        self._transport._MAX_RECV_BYTES = RECEIVE  # noqa: SLF001 - pika has no setting for it
        self._transport._MAX_CONSUME_BYTES = RECEIVE  # noqa: SLF001 - as above

    def cut(self) -> None:
        """Without a goodbye: the broker does not listen any more."""
        if self._transport is not None:
            self._transport.abort()

    def write(self, pieces: Iterable[bytes]) -> None:
        """Whole frames, put together into few writes."""
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
        """Whether a frame was part of a delivery or a confirm."""
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
    """A delivery of which some frames are still to come."""

    __slots__ = ("_left", "_method", "_pieces", "_properties")

    def __init__(self, method: bytes) -> None:
        self._method = method
        self._pieces: list[bytes] = []
        self._properties = Properties()
        self._left = 0

    def add(self, kind: int, payload: bytes) -> bool:
        """True once it is complete."""
        if kind == spec.FRAME_HEADER:
            self._left, self._properties = _content(payload)
        else:
            self._pieces.append(payload)
            self._left -= len(payload)
        return not self._left

    def delivery(self) -> Delivery:
        method = self._method
        place = 5 + method[4]  # behind the consumer tag
        tag, redelivered = _CONFIRM.unpack_from(method, place)
        exchange, place = _short(method, place + _CONFIRM.size)
        key, _ = _short(method, place)
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return Delivery(body, self._properties, exchange, key, bool(redelivered), tag)


def _content(payload: bytes) -> tuple[int, Properties]:
    """Body size and properties. The broker checked them; if it ever lets a broken one by, it must not take us along."""
    size = int(CONTENT.unpack_from(payload)[2])
    try:
        return size, Properties.decode(payload, CONTENT.size)
    except BadTableError:
        return size, Properties()


def _short(data: bytes, place: int) -> tuple[str | bytes, int]:
    """A short string, as text if it is text, and where it ends."""
    end = place + 1 + data[place]
    raw = data[place + 1 : end]
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end

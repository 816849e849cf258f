"""Builds publish, ack and reject frames as bytes. They are sent in large numbers, so no object is made for each."""

from __future__ import annotations

import struct

from pika import spec

from tarry.amqp.properties import Properties

HEAD = struct.Struct(">BHI")
"""Frame type, channel, size of the payload."""
CONTENT = struct.Struct(">HHQ")
"""Class, weight, size of the body; the properties follow."""
METHOD = struct.Struct(">I")
END = bytes((spec.FRAME_END,))

_SETTLE = struct.Struct(">BHIIQBB")
_MANDATORY = b"\x01"
_MULTIPLE, _REQUEUE = 1, 2


def publish_frames(
    channel: int, exchange: bytes, key: bytes, properties: bytes, body: bytes, *, frame_max: int
) -> bytes:
    """All frames of a mandatory publish, joined."""
    method = b"".join(
        (METHOD.pack(spec.Basic.Publish.INDEX), b"\0\0", _length(exchange), exchange, _length(key), key, _MANDATORY)
    )
    content = CONTENT.pack(Properties.INDEX, 0, len(body)) + properties
    pieces = [HEAD.pack(spec.FRAME_METHOD, channel, len(method)), method, END]
    pieces += [HEAD.pack(spec.FRAME_HEADER, channel, len(content)), content, END]
    most = frame_max - HEAD.size - len(END)
    for start in range(0, len(body), most):
        part = body if len(body) <= most else body[start : start + most]
        pieces += [HEAD.pack(spec.FRAME_BODY, channel, len(part)), part, END]
    return b"".join(pieces)


def ack_frame(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    return _settle(channel, spec.Basic.Ack.INDEX, tag, _MULTIPLE if multiple else 0)


def requeue_frame(channel: int, tag: int) -> bytes:
    return _settle(channel, spec.Basic.Nack.INDEX, tag, _REQUEUE)


def reject_frame(channel: int, tag: int) -> bytes:
    """Nack without requeueing: the queue dead-letters the message."""
    return _settle(channel, spec.Basic.Nack.INDEX, tag, 0)


def _settle(channel: int, method: int, tag: int, bits: int) -> bytes:
    return _SETTLE.pack(spec.FRAME_METHOD, channel, 13, method, tag, bits, spec.FRAME_END)


def _length(text: bytes) -> bytes:
    return bytes((len(text),))

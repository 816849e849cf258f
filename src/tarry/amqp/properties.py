"""Message properties as encoded on the wire: fourteen optional fields, with the header table left as bytes.

An instance replaces pika's `BasicProperties` wherever a message is received or published: pika uses only its `encode()`
and `INDEX`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import ClassVar

from tarry.amqp.field_tables import BadTableError

PERSISTENT = 2

_flags = struct.Struct(">H")
_length = struct.Struct(">I")
_timestamp = struct.Struct(">Q")
_MORE_FLAGS = 1


@dataclass(slots=True)
class Properties:
    """Fields in wire order. Short strings are kept as bytes, since they need not be UTF-8."""

    INDEX: ClassVar[int] = 0x003C
    NAME: ClassVar[str] = "BasicProperties"

    content_type: bytes | None = None
    content_encoding: bytes | None = None
    headers: bytes | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: bytes | None = None
    reply_to: bytes | None = None
    expiration: bytes | None = None
    message_id: bytes | None = None
    timestamp: int | None = None
    type: bytes | None = None
    user_id: bytes | None = None
    app_id: bytes | None = None
    cluster_id: bytes | None = None

    @classmethod
    def decode(cls, data: bytes, offset: int = 0) -> Properties:
        """Decode the part of a content header frame that follows the body size."""
        try:
            return cls._decode(data, offset)
        except (struct.error, IndexError) as error:
            raise BadTableError("the properties are cut off") from error

    @classmethod
    def _decode(cls, data: bytes, offset: int) -> Properties:
        found = cls()
        flags = int(_flags.unpack_from(data, offset)[0])
        position = offset + 2
        for name, bit in _BITS:
            if not flags & bit:
                continue
            if name == "headers":
                end = position + 4 + int(_length.unpack_from(data, position)[0])
                found.headers, position = data[position + 4 : end], end
            elif name == "timestamp":
                found.timestamp, position = int(_timestamp.unpack_from(data, position)[0]), position + 8
            elif name in _OCTETS:
                setattr(found, name, data[position])
                position += 1
            else:
                end = position + 1 + data[position]
                setattr(found, name, data[position + 1 : end])
                position = end
        if position > len(data) or flags & _MORE_FLAGS:
            raise BadTableError("the properties do not end where they should")
        return found

    def encode(self) -> list[bytes]:
        """The part of the content header frame that follows the body size, in pieces."""
        flags, pieces = 0, [b""]
        for (name, bit), value in zip(_BITS, _values(self), strict=True):
            if value is not None:
                flags |= bit
                pieces.append(_encode(name, value))
        pieces[0] = _flags.pack(flags)
        return pieces

    def size(self) -> int:
        """Encoded size in bytes."""
        return sum(map(len, self.encode()))


_ORDER = tuple(one.name for one in fields(Properties))
_BITS = tuple((name, 1 << (15 - place)) for place, name in enumerate(_ORDER))
_OCTETS = frozenset({"delivery_mode", "priority"})
_values = attrgetter(*_ORDER)


def _encode(name: str, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _timestamp.pack(value) if name == "timestamp" else bytes((value,))
    if name == "headers":
        return _length.pack(len(value)) + value
    return bytes((len(value),)) + value

"""Writing field tables: tarry's own entries on the hot path, and whole tables from plain values, whether a person
pasted them as JSON or a client library decoded them.
"""

from __future__ import annotations

import calendar
import struct
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

_length = struct.Struct(">I").pack
_integer = struct.Struct(">q").pack
_double = struct.Struct(">d").pack
LARGEST = 2**63 - 1
LONGEST_NAME = 255


def head(name: str | bytes) -> bytes:
    """An entry's name as the wire has it."""
    raw = name.encode() if isinstance(name, str) else name
    if len(raw) > LONGEST_NAME:
        raise ValueError(f"{name[:40]!r}… is too long for the name of a header: {LONGEST_NAME} bytes at the most")
    return bytes((len(raw),)) + raw


def text_entry(raw_head: bytes, text: str) -> bytes:
    """One entry: a long string."""
    raw = text.encode()
    return b"%bS%b%b" % (raw_head, _length(len(raw)), raw)


def integer_entry(raw_head: bytes, number: int) -> bytes:
    """One entry: a 64-bit integer."""
    return b"%bl%b" % (raw_head, _integer(number))


def bytes_entry(raw_head: bytes, raw: bytes) -> bytes:
    """One entry: a byte array."""
    return b"%bx%b%b" % (raw_head, _length(len(raw)), raw)


def entry(name: str, value: str | int) -> bytes:
    """One entry: a long string or a 64-bit integer."""
    return integer_entry(head(name), value) if isinstance(value, int) else text_entry(head(name), value)


def text_item(text: str) -> bytes:
    """One item of an array: a long string."""
    raw = text.encode()
    return b"S" + _length(len(raw)) + raw


def array_of(raw_head: bytes, *items: bytes) -> bytes:
    """One entry: an array of items that are already encoded."""
    inner = b"".join(items)
    return b"%bA%b%b" % (raw_head, _length(len(inner)), inner)


def array_entry(name: str, values: Iterable[str]) -> bytes:
    """One entry: an array of long strings."""
    return array_of(head(name), *map(text_item, values))


def table(values: Mapping[str, Any]) -> bytes:
    """A whole table from plain values, without its leading length."""
    return b"".join(head(name) + _value(value) for name, value in values.items())


def _value(value: Any) -> bytes:
    match value:
        case None:
            return b"V"
        case bool():
            return b"t" + bytes((value,))
        case int() if -LARGEST - 1 <= value <= LARGEST:
            return b"l" + _integer(value)
        case int() | float():
            return b"d" + _double(value)
        case str():
            return text_item(value)
        case Mapping():
            inner = table(value)
            return b"F" + _length(len(inner)) + inner
        case _:
            return _rarer_value(value)


def _rarer_value(value: Any) -> bytes:
    match value:
        case bytes() | bytearray():
            return b"x" + _length(len(value)) + bytes(value)
        case datetime():
            return b"T" + _integer(max(0, calendar.timegm(value.utctimetuple())))
        case Decimal():
            return _decimal(value)
        case Iterable():
            return array_of(b"", *map(_value, value))
        case _:
            raise ValueError(f"a header cannot hold a {type(value).__name__}")


def _decimal(value: Decimal) -> bytes:
    """A 32-bit number with so many digits behind its point; what does not fit stays legible, as text."""
    digits = value.normalize().as_tuple().exponent
    scale = max(0, -digits) if isinstance(digits, int) else LONGEST_NAME + 1
    try:
        return b"D" + struct.pack(">Bi", scale, int(value.scaleb(scale)))
    except (struct.error, ArithmeticError, ValueError):
        return text_item(str(value))

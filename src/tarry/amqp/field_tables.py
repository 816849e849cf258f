"""Reads, edits and writes AMQP field tables without decoding them.

Users' headers pass through tarry byte for byte: a client library that decodes and encodes again loses the fraction of
a double, fails on a millisecond timestamp and changes unusual strings. A table is therefore only scanned for its
entries: the name, the type and the position of each. Values are decoded one at a time, and only those that belong to
tarry's contract. Nested tables and arrays are skipped as a whole, so nesting depth costs nothing.
"""

from __future__ import annotations

import calendar
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

_FIXED = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "U": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8}
_FIXED |= {"D": 5, "T": 8, "V": 0}
_SIZES: dict[int, int | None] = {ord(kind): size for kind, size in _FIXED.items()} | dict.fromkeys(b"SxAF")
"""Size in bytes by type octet; None means that the value starts with its length."""
_INTEGERS = {b"b": ">b", b"B": ">B", b"s": ">h", b"u": ">H", b"U": ">h", b"I": ">i", b"i": ">I", b"l": ">q", b"L": ">Q"}
_unpack_integer = {kind: struct.Struct(layout).unpack for kind, layout in _INTEGERS.items()}
_FLOATS = {b"f": ">f", b"d": ">d"}
_length = struct.Struct(">I").unpack_from
_LENGTH = 4
_DIGITS = 19
"""Most decimal digits of a 64-bit integer."""

MOST_ENTRIES = 4_096
"""Most entries that are read. Real messages have fewer; the limit bounds the cost of a frame full of tiny headers."""

MOST_OWN = 4_000
"""Most headers of the application: those that tarry and the broker add must fit within `MOST_ENTRIES` too."""
_BESIDE = (b"tarry-", b"x-", b"retry_count", b"max_retries")
_COUNTED = range(MOST_ENTRIES)

Entry = tuple[bytes, int, int, int]
"""One entry of a table: its name, its start, the position of its type octet, its end."""


class BadTableError(ValueError):
    """A field table that does not follow the AMQP grammar."""


class Field(NamedTuple):
    """One value: its type and its bytes, without the length of a string, table or array."""

    kind: bytes
    value: bytes

    def text(self) -> str | None:
        """The value as text, or None if it is not text."""
        if self.kind not in (b"S", b"x"):
            return None
        try:
            return self.value.decode()
        except UnicodeDecodeError:
            return None

    def integer(self) -> int | None:
        """The value as an integer. Whole floats and digits in a string count too, since several clients write them."""
        unpack = _unpack_integer.get(self.kind)
        if unpack is not None:
            return int(unpack(self.value)[0])
        if self.kind in _FLOATS:
            number = float(struct.unpack(_FLOATS[self.kind], self.value)[0])
            return int(number) if number.is_integer() else None
        text = self.text()
        return int(text) if text is not None and _is_number(text) else None


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS


def scan(table: bytes) -> list[Entry]:
    """Every entry of a table (its content, without the leading length), in order. It runs for every message."""
    entries: list[Entry] = []
    position, length = 0, len(table)
    try:
        for _ in _COUNTED:
            if position >= length:
                break
            at = position + 1 + table[position]
            size = _SIZES[table[at]]
            end = at + 1 + (size if size is not None else _LENGTH + _length(table, at + 1)[0])
            entries.append((table[position + 1 : at], position, at, end))
            position = end
    except (IndexError, struct.error):
        raise BadTableError("a field is cut off") from None
    except KeyError as unknown:
        raise BadTableError(f"unknown field type {bytes(unknown.args)!r}") from None
    if position > length:
        raise BadTableError("a field is longer than the table")
    if position < length:
        raise BadTableError(f"it has more than {MOST_OWN} entries")
    return entries


def are_too_many(entries: list[Entry]) -> bool:
    """Whether a message has more application headers than a retry can carry."""
    return len(entries) > MOST_OWN and sum(not name.startswith(_BESIDE) for name, _, _, _ in entries) > MOST_OWN


def field_at(table: bytes, at: int, end: int) -> Field:
    """The value whose type octet is at position `at`."""
    begin = at + 1 if _SIZES[table[at]] is not None else at + 1 + _LENGTH
    return Field(table[at : at + 1], table[begin:end])


def walk(table: bytes) -> Iterator[tuple[bytes, Field]]:
    """Names and values of a table, in order."""
    return ((name, field_at(table, at, end)) for name, _, at, end in scan(table))


def walk_array(array: bytes) -> Iterator[Field]:
    """The items of an array (its content, without the leading length), in order."""
    at, length, count = 0, len(array), 0
    while at < length:
        count += 1
        if count > MOST_ENTRIES:
            raise BadTableError(f"an array has more than {MOST_ENTRIES} items")
        end = _value_end(array, at)
        if end > length:
            raise BadTableError("a field is longer than the array")
        yield field_at(array, at, end)
        at = end


def _value_end(data: bytes, at: int) -> int:
    """The end of the value whose type octet is at position `at`."""
    try:
        size = _SIZES[data[at]]
        return at + 1 + (size if size is not None else _LENGTH + int(_length(data, at + 1)[0]))
    except struct.error:
        raise BadTableError("a field is cut off") from None
    except KeyError as unknown:
        raise BadTableError(f"unknown field type {bytes(unknown.args)!r}") from None


def pick(table: bytes, names: Collection[bytes], entries: list[Entry] | None = None) -> dict[bytes, Field]:
    """The values with these names; if a name occurs twice, the last value counts, as in a dictionary."""
    found = scan(table) if entries is None else entries
    return {name: field_at(table, at, end) for name, _, at, end in found if name in names}


def cut(table: bytes, unwanted: Callable[[bytes], bool], entries: list[Entry] | None = None) -> bytes:
    """The table without the entries whose name is unwanted; all others stay unchanged, byte for byte."""
    kept, position = [], 0
    for name, start, _, end in scan(table) if entries is None else entries:
        if unwanted(name):
            kept.append(table[position:start])
            position = end
    return b"".join((*kept, table[position:])) if position else table


_length_of = struct.Struct(">I").pack
_integer = struct.Struct(">q").pack
_double = struct.Struct(">d").pack
LARGEST = 2**63 - 1
LONGEST_NAME = 255


def head(name: str | bytes) -> bytes:
    """An entry's name as encoded on the wire."""
    raw = name.encode() if isinstance(name, str) else name
    if len(raw) > LONGEST_NAME:
        raise ValueError(f"{name[:40]!r}… is too long for the name of a header: {LONGEST_NAME} bytes at the most")
    return bytes((len(raw),)) + raw


def text_entry(raw_head: bytes, text: str) -> bytes:
    """One entry: a long string."""
    raw = text.encode()
    return b"%bS%b%b" % (raw_head, _length_of(len(raw)), raw)


def integer_entry(raw_head: bytes, number: int) -> bytes:
    """One entry: a 64-bit integer."""
    return b"%bl%b" % (raw_head, _integer(number))


def bytes_entry(raw_head: bytes, raw: bytes) -> bytes:
    """One entry: a byte array."""
    return b"%bx%b%b" % (raw_head, _length_of(len(raw)), raw)


def entry(name: str, value: str | int) -> bytes:
    """One entry: a long string or a 64-bit integer."""
    return integer_entry(head(name), value) if isinstance(value, int) else text_entry(head(name), value)


def text_item(text: str) -> bytes:
    """One item of an array: a long string."""
    raw = text.encode()
    return b"S" + _length_of(len(raw)) + raw


def array_of(raw_head: bytes, *items: bytes) -> bytes:
    """One entry: an array of items that are already encoded."""
    inner = b"".join(items)
    return b"%bA%b%b" % (raw_head, _length_of(len(inner)), inner)


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
            return b"F" + _length_of(len(inner)) + inner
        case _:
            return _rarer_value(value)


def _rarer_value(value: Any) -> bytes:
    match value:
        case bytes() | bytearray():
            return b"x" + _length_of(len(value)) + bytes(value)
        case datetime():
            return b"T" + _integer(max(0, calendar.timegm(value.utctimetuple())))
        case Decimal():
            return _decimal(value)
        case Iterable():
            return array_of(b"", *map(_value, value))
        case _:
            raise ValueError(f"a header cannot hold a {type(value).__name__}")


def _decimal(value: Decimal) -> bytes:
    """Encode as an AMQP decimal: a scale and a 32-bit integer. A value that does not fit is encoded as text."""
    digits = value.normalize().as_tuple().exponent
    scale = max(0, -digits) if isinstance(digits, int) else LONGEST_NAME + 1
    try:
        return b"D" + struct.pack(">Bi", scale, int(value.scaleb(scale)))
    except (struct.error, ArithmeticError, ValueError):
        return text_item(str(value))

"""AMQP field tables without decoding them.

Users' headers pass through tarry byte for byte: a client library that decodes and encodes again loses the fraction of
a double, fails on a millisecond timestamp and changes odd strings. So a table is only ever walked: each entry has a
name, a type and the bytes it stands in. Values are read one at a time, and only those that belong to tarry's contract.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

_FIXED = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"U": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8, b"f": 4, b"d": 8}
_FIXED |= {b"D": 5, b"T": 8, b"V": 0}
_COUNTED = frozenset((b"S", b"x", b"A", b"F"))
_INTEGERS = {b"b": ">b", b"B": ">B", b"s": ">h", b"u": ">H", b"U": ">h", b"I": ">i", b"i": ">I", b"l": ">q", b"L": ">Q"}
_LENGTH = struct.Struct(">I")
LONGEST_ENTRY_NAME = 255


class BadTableError(ValueError):
    """A field table that does not follow the AMQP grammar."""


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of a table or array: its type, its value's bytes, and where the whole entry stands."""

    kind: bytes
    value: bytes
    start: int
    end: int

    def text(self) -> str | None:
        """The value as text, or None if it is none."""
        if self.kind not in (b"S", b"x"):
            return None
        try:
            return self.value[_LENGTH.size :].decode()
        except UnicodeDecodeError:
            return None

    def integer(self) -> int | None:
        """The value as an integer, digits in a string included: several clients write numbers so."""
        if self.kind in _INTEGERS:
            return int(struct.unpack(_INTEGERS[self.kind], self.value)[0])
        text = self.text()
        return int(text) if text is not None and _is_number(text) else None

    def inner(self) -> bytes:
        """The content of a nested table or array, without its length."""
        return self.value[_LENGTH.size :]


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 19  # noqa: PLR2004 - digits of a 64-bit integer


def walk(table: bytes) -> Iterator[tuple[bytes, Field]]:
    """The entries of a table (its content, without the leading length), in order."""
    position, end = 0, len(table)
    while position < end:
        start = position
        name_end = position + 1 + table[position]
        name = table[position + 1 : name_end]
        position = _value_end(table, name_end)
        yield name, Field(table[name_end : name_end + 1], table[name_end + 1 : position], start, position)


def walk_array(array: bytes) -> Iterator[Field]:
    """The items of an array (its content, without the leading length), in order."""
    position, end = 0, len(array)
    while position < end:
        start = position
        position = _value_end(array, position)
        yield Field(array[start : start + 1], array[start + 1 : position], start, position)


def _value_end(data: bytes, position: int) -> int:
    """Where the value ends whose type octet stands at `position`."""
    kind = data[position : position + 1]
    begin = position + 1
    if kind in _COUNTED:
        if begin + _LENGTH.size > len(data):
            raise BadTableError("a length is cut off")
        end = begin + _LENGTH.size + int(_LENGTH.unpack_from(data, begin)[0])
    elif kind in _FIXED:
        end = begin + _FIXED[kind]
    else:
        raise BadTableError(f"unknown field type {kind!r}" if kind else "a field is cut off")
    if end > len(data):
        raise BadTableError("a field is longer than the table")
    return end


def pick(table: bytes, names: Collection[bytes]) -> dict[bytes, Field]:
    """The entries with these names; of two with one name the last counts, as it does in a dictionary."""
    return {name: field for name, field in walk(table) if name in names}


def cut(table: bytes, unwanted: Callable[[bytes], bool]) -> bytes:
    """The table without the entries whose name is unwanted; all others stay as they are, to the byte."""
    kept, position = [], 0
    for name, field in walk(table):
        if unwanted(name):
            kept.append(table[position : field.start])
            position = field.end
    return b"".join((*kept, table[position:])) if position else table


def entry(name: str, value: str | int) -> bytes:
    """One new entry: a long string or a 64-bit integer."""
    raw = name.encode()
    head = bytes((len(raw),)) + raw
    if isinstance(value, int):
        return head + b"l" + struct.pack(">q", value)
    text = value.encode()
    return head + b"S" + _LENGTH.pack(len(text)) + text


def array_entry(name: str, values: Collection[str]) -> bytes:
    """One new entry: an array of long strings."""
    raw = name.encode()
    items = b"".join(b"S" + _LENGTH.pack(len(text)) + text for text in (value.encode() for value in values))
    return bytes((len(raw),)) + raw + b"A" + _LENGTH.pack(len(items)) + items

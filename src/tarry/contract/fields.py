"""AMQP field tables without decoding them.

Users' headers pass through tarry byte for byte: a client library that decodes and encodes again loses the fraction of
a double, fails on a millisecond timestamp and changes odd strings. So a table is only ever walked: each entry has a
name, a type and the bytes it stands in. Values are read one at a time, and only those that belong to tarry's contract.
Nested tables and arrays are stepped over, so depth costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from tarry.contract.encoding import entry

_FIXED = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "U": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8}
_FIXED |= {"D": 5, "T": 8, "V": 0}
_SIZES: dict[int, int | None] = {ord(kind): size for kind, size in _FIXED.items()} | dict.fromkeys(b"SxAF")
"""By type octet; None is a value with a length of its own."""
_NUMBERS = {b"b": ">b", b"B": ">B", b"s": ">h", b"u": ">H", b"U": ">h", b"I": ">i", b"i": ">I", b"l": ">q", b"L": ">Q"}
_FLOATS = {b"f": ">f", b"d": ">d"}
_length = struct.Struct(">I").unpack_from
_LENGTH = 4
_DIGITS = 19
"""Of a 64-bit integer."""

MOST_ENTRIES = 4_096
"""No message has so many headers, unless somebody wants to see how long it takes to read a frame full of tiny ones."""

MOST_OWN = 4_000
"""Of an application's own: what tarry and the broker add must fit beside them."""
_BESIDE = (b"tarry-", b"x-", b"retry_count", b"max_retries")
_COUNTED = range(MOST_ENTRIES)

Entry = tuple[bytes, int, int, int]
"""One entry of a table: its name, where it starts, where its type octet stands, where it ends."""


class BadTableError(ValueError):
    """A field table that does not follow the AMQP grammar."""


class Field(NamedTuple):
    """One value: its type and its bytes, without the length of a string, table or array."""

    kind: bytes
    value: bytes

    def text(self) -> str | None:
        """The value as text, or None if it is none."""
        if self.kind not in (b"S", b"x"):
            return None
        try:
            return self.value.decode()
        except UnicodeDecodeError:
            return None

    def integer(self) -> int | None:
        """The value as an integer; whole floats and digits in a string too, since several clients write numbers so."""
        if self.kind in _NUMBERS:
            return int(struct.unpack(_NUMBERS[self.kind], self.value)[0])
        if self.kind in _FLOATS:
            number = float(struct.unpack(_FLOATS[self.kind], self.value)[0])
            return int(number) if number.is_integer() else None
        text = self.text()
        return int(text) if text is not None and _is_number(text) else None


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS


def scan(table: bytes) -> list[Entry]:
    """Every entry of a table (its content, without the leading length), in order. Each message passes through here."""
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
    """Whether an application has put more headers on a message than retries carry."""
    return len(entries) > MOST_OWN and sum(not name.startswith(_BESIDE) for name, _, _, _ in entries) > MOST_OWN


def field_at(table: bytes, at: int, end: int) -> Field:
    """The value whose type octet stands at `at`."""
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
    """Where the value ends whose type octet stands at `at`."""
    try:
        size = _SIZES[data[at]]
        return at + 1 + (size if size is not None else _LENGTH + int(_length(data, at + 1)[0]))
    except struct.error:
        raise BadTableError("a field is cut off") from None
    except KeyError as unknown:
        raise BadTableError(f"unknown field type {bytes(unknown.args)!r}") from None


def pick(table: bytes, names: Collection[bytes], entries: list[Entry] | None = None) -> dict[bytes, Field]:
    """The values with these names; of two with one name the last counts, as it does in a dictionary."""
    found = scan(table) if entries is None else entries
    return {name: field_at(table, at, end) for name, _, at, end in found if name in names}


def cut(table: bytes, unwanted: Callable[[bytes], bool], entries: list[Entry] | None = None) -> bytes:
    """The table without the entries whose name is unwanted; all others stay as they are, to the byte."""
    kept, position = [], 0
    for name, start, _, end in scan(table) if entries is None else entries:
        if unwanted(name):
            kept.append(table[position:start])
            position = end
    return b"".join((*kept, table[position:])) if position else table


__all__ = [
    "MOST_OWN",
    "BadTableError",
    "Entry",
    "Field",
    "are_too_many",
    "cut",
    "entry",
    "field_at",
    "pick",
    "scan",
    "walk",
    "walk_array",
]

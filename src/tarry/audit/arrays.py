"""Arrays as Postgres reads them, put together in one go.

psycopg looks at every item of a list to find out what it is; a batch has ten thousand of them, and we know. Known types
also mean that a statement has one plan, whatever is null in a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct(">iiIii")
"""Dimensions, whether there are nulls, type of the items, how many, index of the first."""
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class Packed:
    """The items of one array; each kind of array is a class of its own, because psycopg goes by that."""

    item_oid: int
    array_oid: int
    pack: Callable[[Any], bytes]
    repeats = True
    """Whether the same value stands in a batch again and again, as in most columns: then each is packed once."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def packed(self) -> bytes:
        pack = type(self).pack
        head = _HEAD.pack(1, 1, self.item_oid, len(self.items), 1)
        if not self.repeats:
            return head + b"".join([_NULL if item is None else pack(item) for item in self.items])
        known: dict[Any, bytes] = {item: _NULL if item is None else pack(item) for item in set(self.items)}
        return head + b"".join([known[item] for item in self.items])


def _text(item: str) -> bytes:
    raw = item.encode()
    if b"\0" in raw:
        raise psycopg.DataError("PostgreSQL text cannot hold a NUL character")
    return _LENGTH.pack(len(raw)) + raw


def _uuid(item: str) -> bytes:
    try:
        raw = bytes.fromhex(item.replace("-", ""))
    except ValueError as error:
        raise psycopg.DataError(f"{item!r} is no UUID") from error
    if len(raw) != 16:  # noqa: PLR2004 - bytes of a UUID
        raise psycopg.DataError(f"{item!r} is no UUID")
    return b"\0\0\0\x10" + raw


def _number(layout: str) -> Callable[[int], bytes]:
    packer = struct.Struct(layout)
    length = packer.size - _LENGTH.size

    def pack(item: int) -> bytes:
        try:
            return packer.pack(length, item)
        except struct.error as error:
            raise psycopg.DataError(f"{item!r} does not fit its column: {error}") from error

    return pack


class Texts(Packed):
    item_oid, array_oid, pack = 25, 1009, staticmethod(_text)


class Uuids(Packed):
    item_oid, array_oid, pack = 2950, 2951, staticmethod(_uuid)
    repeats = False


class Integers(Packed):
    item_oid, array_oid, pack = 23, 1007, staticmethod(_number(">ii"))


class Bigints(Packed):
    item_oid, array_oid, pack = 20, 1016, staticmethod(_number(">iq"))


class Booleans(Packed):
    item_oid, array_oid, pack = 16, 1000, staticmethod(_number(">i?"))


class Blobs(Packed):
    item_oid, array_oid, pack = 17, 1001, staticmethod(lambda item: _LENGTH.pack(len(item)) + item)
    repeats = False


def _register(kind: type[Packed]) -> None:
    class PackedDumper(Dumper):
        format = Format.BINARY
        oid = kind.array_oid

        def dump(self, obj: Packed) -> bytes:
            return obj.packed()

    psycopg.adapters.register_dumper(kind, PackedDumper)


for _kind in (Texts, Uuids, Integers, Bigints, Booleans, Blobs):
    _register(_kind)

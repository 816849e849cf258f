"""Query parameters as Postgres binary arrays, encoded without psycopg's type detection.

psycopg inspects every item of a list to find its type; a batch has ten thousand items whose types are known here. Known
types also mean that a statement has one plan, whichever values of a batch are null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct(">iiIii")
"""Number of dimensions, whether there are nulls, OID of the item type, number of items, index of the first item."""
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class Packed:
    """The items of one array. Each array type has its own class, because psycopg chooses the dumper by class."""

    item_oid: int
    array_oid: int
    pack: Callable[[Any], bytes]
    repeats = True
    """Whether values repeat within a batch, as in most columns: then each distinct value is packed once."""

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
    try:
        raw = item.encode()
    except UnicodeEncodeError:
        raise psycopg.DataError("PostgreSQL text cannot hold half a character") from None
    if b"\0" in raw:
        raise psycopg.DataError("PostgreSQL text cannot hold a NUL character")
    return _LENGTH.pack(len(raw)) + raw


def _uuid(item: str) -> bytes:
    try:
        raw = bytes.fromhex(item.replace("-", ""))
    except ValueError as error:
        raise psycopg.DataError(f"{item!r} is not a UUID") from error
    if len(raw) != 16:  # noqa: PLR2004 - bytes of a UUID
        raise psycopg.DataError(f"{item!r} is not a UUID")
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


CLAIM = {
    "ids": "retry_id",
    "rounds": "round",
    "knows_round": "knows_round",
    "redelivered": "redelivered",
    "counts": "retry_count",
    "queues": "queue",
    "message_ids": "message_id",
    "since_ms": "since_ms",
    "identities": "identity",
    "matchable": "matchable",
    "deaths": "death",
    "by_content": "by_content",
}
RECORD = {
    "ids": "retry_id",
    "rounds": "round",
    "states": "state",
    "reasons": "reason",
    "queues": "queue",
    "exchanges": "exchange",
    "routing_keys": "routing_key",
    "message_ids": "message_id",
    "counts": "retry_count",
    "most": "max_retries",
    "policies": "policy",
    "classes": "error_class",
    "types": "error_type",
    "error_reasons": "error_reason",
    "since_ms": "since_ms",
    "due_ms": "due_ms",
    "delay_ms": "delay_ms",
    "tiers": "tier",
    "properties": "properties",
    "identities": "identity",
    "deaths": "death",
    "guessed": "guessed_round",
    "owners": "owner",
    "job_types": "job_type",
    "priorities": "priority",
}
RETURN = {
    "ids": "retry_id",
    "rounds": "round",
    "queues": "queue",
    "counts": "retry_count",
    "due_ms": "due_ms",
    "at_ms": "at_ms",
    "redelivered": "redelivered",
    "held": "held",
}
CHARGE = {
    "ids": "retry_id",
    "rounds": "round",
    "owners": "owner",
    "queues": "queue",
    "slots": "slot",
    "due_ms": "due_ms",
    "latest_ms": "latest_ms",
    "draws": "draw",
    "now_ms": "now_ms",
}
LEG_KEY = {"ids": "retry_id", "rounds": "round", "due_ms": "due_ms", "contents": "content", "legs": "leg"}
LEG = LEG_KEY | {"tiers": "tier", "at_ms": "at_ms", "delay_ms": "delay_ms", "wait_ms": "wait_ms"}
CANCELLED = {name: RETURN[name] for name in ("ids", "rounds", "at_ms", "redelivered")}


_KINDS: dict[str, type[Packed]] = {
    "ids": Uuids,
    "rounds": Integers,
    "counts": Integers,
    "guessed": Integers,
    "legs": Integers,
    "slots": Integers,
    "draws": Integers,
    "limits": Bigints,
    "amounts": Bigints,
    "opens_ms": Bigints,
    "spreads_ms": Bigints,
    "starts_ms": Bigints,
    "ends_ms": Bigints,
    "latest_ms": Bigints,
    "now_ms": Bigints,
    "most": Integers,
    "knows_round": Booleans,
    "redelivered": Booleans,
    "held": Booleans,
    "matchable": Booleans,
    "by_content": Booleans,
    "identities": Uuids,
    "contents": Uuids,
    "since_ms": Bigints,
    "due_ms": Bigints,
    "delay_ms": Bigints,
    "wait_ms": Bigints,
    "at_ms": Bigints,
    "bodies": Blobs,
    "properties": Blobs,
}
"""The array type of each parameter; all others are text arrays."""


def columns(items: Sequence[object], names: Mapping[str, str]) -> dict[str, Any]:
    return {parameter: column(parameter, map(attrgetter(attribute), items)) for parameter, attribute in names.items()}


def column(parameter: str, items: Iterable[Any]) -> Packed:
    """One array."""
    return _KINDS.get(parameter, Texts)(list(items))

"""Field tables as the AMQP grammar has them, written by hand: these tests must not trust the code they test."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hypothesis import strategies as st

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.message import Acceptance
from tarry.core.names import Names

NAMES = Names()
ACCEPT = Acceptance(NAMES)
NEW_ID = "00000000-0000-4000-8000-000000000000"


def new_id() -> str:
    return NEW_ID


def counted(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content)) + content


def text(value: str | bytes) -> bytes:
    return counted(b"S", value.encode() if isinstance(value, str) else value)


def integer(value: int) -> bytes:
    return b"l" + struct.pack(">q", value)


def array(*items: bytes) -> bytes:
    return counted(b"A", b"".join(items))


def table(*entries: bytes) -> bytes:
    return counted(b"F", b"".join(entries))


def named(name: str | bytes, value: bytes | str | int) -> bytes:
    """One entry; text and integers in their most usual types."""
    raw = name.encode() if isinstance(name, str) else name
    if isinstance(value, int):
        value = integer(value)
    return bytes([len(raw)]) + raw + (text(value) if isinstance(value, str) else value)


def headers(values: dict[str, bytes | str | int]) -> bytes:
    return b"".join(named(name, value) for name, value in values.items())


def death(queue: str, reason: str = "rejected", exchange: str = "", keys: Iterable[str | bytes] = ()) -> bytes:
    """One item of x-death as a broker writes it."""
    return table(
        named("count", 1),
        named("reason", reason),
        named("queue", queue),
        named("time", b"T" + struct.pack(">Q", 1_700_000_000)),
        named("exchange", exchange),
        named("routing-keys", array(*(text(key) for key in keys or [queue]))),
    )


def rejected(
    queue: str = "orders",
    *more: bytes,
    reason: str = "rejected",
    exchange: str = "",
    key: str | None = None,
    body: bytes = b"payload",
    via: str = "retry.intake",
    **properties: object,
) -> Delivery:
    """A message that the broker dead-lettered to tarry."""
    x_death = named("x-death", array(death(queue, reason, exchange, [queue if key is None else key])))
    deliver_key = queue if key is None else key
    return Delivery(body, Properties(headers=b"".join((*more, x_death)), **properties), via, deliver_key)  # type: ignore[arg-type]


def published(values: dict[str, bytes | str | int], body: bytes = b"payload", **properties: object) -> Delivery:
    """A message that somebody published to retry.scheduled."""
    return Delivery(body, Properties(headers=headers(values), **properties), "", "retry.scheduled")  # type: ignore[arg-type]


# Every type there is, with its bytes. RabbitMQ's own grammar, and `L` and `U` of the specification's.
_FIXED = {
    "t": 1,
    "b": 1,
    "B": 1,
    "s": 2,
    "u": 2,
    "U": 2,
    "I": 4,
    "i": 4,
    "l": 8,
    "L": 8,
    "f": 4,
    "d": 8,
    "D": 5,
    "T": 8,
}
_scalars = st.one_of(
    st.just(b"V"),
    *(st.binary(min_size=size, max_size=size).map(kind.encode().__add__) for kind, size in _FIXED.items()),
    st.binary(max_size=40).map(lambda raw: counted(b"S", raw)),
    st.binary(max_size=40).map(lambda raw: counted(b"x", raw)),
)
entry_names = st.binary(max_size=20) | st.text(max_size=5).map(lambda name: name.encode()[:255])


def _nested(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    entries = st.lists(st.builds(named, entry_names, inner), max_size=4)
    return st.lists(inner, max_size=4).map(lambda items: array(*items)) | entries.map(lambda found: table(*found))


field_values = st.recursive(_scalars, _nested, max_leaves=12)
"""Any value of any type, nested."""


def entries_of(names: st.SearchStrategy[bytes] = entry_names) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.builds(named, names, field_values), max_size=12)

"""Parses the broker's `x-death` header: the queue a message failed in, the reason, and how it was routed there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tarry.amqp.field_tables import Field, scan, walk_array
from tarry.contract.header_reader import STRICT, RefusalError
from tarry.core.names import Names

_TEXTS = frozenset({b"queue", b"reason", b"exchange"})
_NUMBERS = frozenset({b"count", b"time"})
"""Integers of any width: they are only compared."""
WIDEST_NUMBER = 9
"""Bytes of the widest integer, including its type octet."""
_STRING, _ARRAY = b"SA"
STRING_HEAD = 5
"""Bytes before the content of a string or an array: the type octet and the length."""


class Death(NamedTuple):
    """One dead-lettering."""

    queue: str
    reason: str
    exchange: str
    routing_key: str
    number: int = 0
    """How often it was dead-lettered there, as counted by the broker."""
    time_s: int = 0

    @property
    def stamp(self) -> str | None:
        """Identifies one dead-lettering, to the second; None if the broker gave no time."""
        return f"{self.queue}:{self.number}:{self.time_s}" if self.time_s else None


def last_death(found: Field | None, names: Names, decoding: str = STRICT) -> Death | None:
    """The newest death outside tarry's own queues; old brokers do not keep the order of the later entries."""
    for death in deaths(found, decoding):
        if not names.is_ours(death.queue):
            return death
    return None


def deaths(found: Field | None, decoding: str = STRICT) -> Iterator[Death]:
    """All of an `x-death` header, newest first."""
    if found is not None and found.kind == b"A":
        for item in walk_array(found.value):
            if item.kind == b"F":
                yield _read(item.value, decoding)


def _read(table: bytes, decoding: str) -> Death:
    """Read the required fields only: this runs for every dead-lettered request."""
    texts, numbers, keys = {}, {}, b""
    for name, _, at, end in scan(table):
        if name in _TEXTS:
            texts[name] = _text(table[at + STRING_HEAD : end], decoding) if table[at] == _STRING else ""
        elif name == b"routing-keys" and table[at] == _ARRAY:
            keys = table[at + STRING_HEAD : end]
        elif name in _NUMBERS and end - at <= WIDEST_NUMBER:
            numbers[name] = int.from_bytes(table[at + 1 : end], "big")
    first = next(walk_array(keys)).value if keys else b""
    return Death(
        texts.get(b"queue", ""),
        texts.get(b"reason", ""),
        texts.get(b"exchange", ""),
        _text(first, decoding),
        numbers.get(b"count", 0),
        numbers.get(b"time", 0),
    )


def _text(raw: bytes, decoding: str) -> str:
    try:
        return raw.decode(errors=decoding)
    except UnicodeDecodeError:
        raise RefusalError("its x-death names a queue, exchange or key that is not UTF-8 text") from None

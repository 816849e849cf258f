"""What the broker's `x-death` says: which queue a message failed in, why, and how it had come there."""

from __future__ import annotations

from dataclasses import dataclass

from tarry.contract.fields import Field, walk, walk_array
from tarry.contract.reading import RefusalError
from tarry.core.names import Names


@dataclass(frozen=True, slots=True)
class Death:
    """One dead-lettering."""

    queue: str
    reason: str
    exchange: str
    routing_key: str


def last_death(fields: dict[bytes, Field], names: Names) -> Death | None:
    """The newest death outside tarry's own queues: old brokers do not keep the order of the later entries."""
    found = fields.get(b"x-death")
    if found is None or found.kind != b"A":
        return None
    for item in walk_array(found.inner()):
        if item.kind == b"F":
            death = _read(dict(walk(item.inner())))
            if not names.is_ours(death.queue):
                return death
    return None


def _read(entry: dict[bytes, Field]) -> Death:
    keys = entry.get(b"routing-keys")
    first = next(walk_array(keys.inner()), None) if keys is not None and keys.kind == b"A" else None
    return Death(_text(entry, b"queue"), _text(entry, b"reason"), _text(entry, b"exchange"), _value(first))


def _text(entry: dict[bytes, Field], name: bytes) -> str:
    return _value(entry.get(name))


def _value(field: Field | None) -> str:
    if field is None:
        return ""
    text = field.text()
    if text is None:
        raise RefusalError("its x-death names a queue, exchange or key that is not UTF-8 text")
    return text

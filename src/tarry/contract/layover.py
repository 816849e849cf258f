"""The legs of a delay that is longer than the ladder holds.

A message on a leg that is not the last carries the key `~layover` in place of the keys that act after the relay: those
of what it can be paused by, and of its destination. No consumer of a queue sees BCC keys, and the policy may change
meanwhile, so these keys travel in the header `tarry-layover`, after the number of the leg. The last leg has the keys in
BCC again and not the header. The key of a cancellation is in BCC on every leg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tarry.amqp.field_tables import Field, array_of, cut, head, pick, scan, text_item, walk_array
from tarry.amqp.properties import Properties
from tarry.contract import headers as h
from tarry.contract.header_reader import RefusalError
from tarry.contract.identity import content_identity, message_id_of
from tarry.contract.retry_headers import read_retry_headers
from tarry.contract.safety import safe
from tarry.core.ladder import Itinerary
from tarry.core.names import LAYOVER, id_key, is_check_key, is_destination_key, is_gate_key, is_id_key

MOST_LEGS = 1_000_000

_LAYOVER, _BCC = head(h.LAYOVER), head("BCC")
_RAW_LAYOVER, _RAW_BCC, _FORM = h.LAYOVER.encode(), b"BCC", h.FORM.encode()
_OF_THE_LEG = frozenset({_RAW_LAYOVER, *(name.encode() for name in h.BROKERS_OWN)})
_BROKERS_PREFIXES = tuple(prefix.encode() for prefix in h.BROKERS_OWN_PREFIXES)
_LAYOVER_KEY = text_item(LAYOVER)


class Layover(NamedTuple):
    """What the header of a leg says."""

    leg: int
    """1 for the first leg."""
    keys: tuple[str, ...]
    """The keys for the last leg, without that of a cancellation; the last one is the key of the destination."""


def read_layover(fields: Mapping[bytes, Field]) -> Layover | None:
    """None for a message that is not on a leg with another one after it. Raises RefusalError for a forged header."""
    found = fields.get(_RAW_LAYOVER)
    if found is None:
        return None
    items = [*walk_array(found.value)] if found.kind == b"A" else []
    leg, keys = items[0].integer() if items else None, [item.text() or "" for item in items[1:]]
    gates = all(is_gate_key(key) or is_check_key(key) for key in keys[:-1])
    sound = keys and gates and is_destination_key(keys[-1])
    if not sound or leg is None or not 0 < leg < MOST_LEGS:
        raise RefusalError(f"its header `{h.LAYOVER}` is not one that tarry writes")
    return Layover(leg, tuple(keys))


def leg_entries(way: Itinerary, leg: int, cancel_key: bytes, keys: bytes) -> bytes:
    """The header and the BCC keys of a leg that is not the last. The keys are encoded items of an array."""
    header = array_of(_LAYOVER, text_item(str(leg)), keys)
    return header + array_of(_BCC, *map(text_item, way.keys), cancel_key, _LAYOVER_KEY)


def next_leg(properties: Properties, retry_id: str, round_: int, layover: Layover, way: Itinerary) -> Properties:
    """The properties for the next leg, by this itinerary: the same, byte for byte, except for header and keys."""
    kept = cut(properties.headers or b"", _is_of_the_leg)
    return safe(properties, kept + leg_or_home(way, layover.leg + 1, id_key(retry_id, round_), layover.keys))


def leg_or_home(way: Itinerary, leg: int, cancel_key: str, keys: Iterable[str]) -> bytes:
    """The entries of a leg by this itinerary, which may be the last one."""
    own, items = text_item(cancel_key), b"".join(map(text_item, keys))
    if way.leg_ms:
        return leg_entries(way, leg, own, items)
    return array_of(_BCC, *map(text_item, way.keys), own, items)


def without_legs(properties: Properties) -> Properties:
    """The properties of a first leg as the audit stores them: with all keys of the last leg in BCC, and no itinerary.

    What is made from them (a retry-now, a rebuilt message, the search for what is paused) need not know of legs.
    """
    table = properties.headers or b""
    fields = pick(table, {_RAW_LAYOVER, _RAW_BCC})
    layover = read_layover(fields)
    if layover is None:
        return properties
    cancel = [key for key in _texts(fields[_RAW_BCC]) if is_id_key(key)]
    kept = cut(table, {_RAW_LAYOVER, _RAW_BCC}.__contains__)
    return safe(properties, kept + array_of(_BCC, *map(text_item, (*cancel, *layover.keys))))


def content_of(properties: Properties, body: bytes) -> str:
    """A hash of the user's message, which is the same on every leg: what is dropped as a copy must be equal to what was
    published for the next leg.
    """
    table = properties.headers or b""
    entries = scan(table)
    contract = read_retry_headers(pick(table, {_FORM}, entries)).contract
    return content_identity("", message_id_of(properties), body, properties, entries, contract=contract)


def is_on_layover(fields: Mapping[bytes, Field]) -> bool:
    return _RAW_LAYOVER in fields


def _texts(field: Field) -> list[str]:
    return [item.text() or "" for item in walk_array(field.value)]


def _is_of_the_leg(name: bytes) -> bool:
    return name in _OF_THE_LEG or name.startswith(_BROKERS_PREFIXES)

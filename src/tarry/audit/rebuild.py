"""A message from the books: the very bytes that were sent, with the way for what is left of its delay. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tarry.broker.publisher import Message
from tarry.contract import headers as h
from tarry.contract.encoding import array_entry, entry
from tarry.contract.fields import BadTableError, cut, pick, walk_array
from tarry.contract.properties import Properties
from tarry.core.decide import Rulebook
from tarry.core.ladder import first_queue, itinerary
from tarry.core.names import RESERVED, Names, id_key

_BCC = b"BCC"
_OF_THE_ROUND = frozenset({_BCC, h.ROUND.encode(), h.DUE.encode()})
_WHO = f"{RESERVED}id:"
_LASTING = (_WHO, f"{RESERVED}to:", f"{RESERVED}to#", f"{RESERVED}via:", f"{RESERVED}via#")
"""Keys that stay the same whatever the delay: who it is, and where it returns."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the books keep of one message."""

    retry_id: str
    round: int
    routing_key: str
    queue: str
    due_ms: int
    body: bytes
    properties: bytes


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The message as it is sent again, and where it will wait."""

    stored: Stored
    message: Message
    tier: str
    delay_ms: int
    returns_to: str
    """Its destination's routing key."""


class CannotRebuildError(ValueError):
    """What is stored is no message that has a way."""


def next_round(stored: Stored, names: Names, now_ms: int) -> Message:
    """As its next round, due now and past the gate of the cancelled: straight to the relay of its destination."""
    properties, lasting = _read(stored)
    kept = cut(properties.headers or b"", _OF_THE_ROUND.__contains__)
    round_ = stored.round + 1
    addresses = (id_key(stored.retry_id, round_), lasting[-1])
    headers = kept + entry(h.ROUND, round_) + entry(h.DUE, now_ms) + array_entry("BCC", addresses)
    token = f"{stored.retry_id}:{round_}"
    return Message(names.relay, stored.routing_key, replace(properties, headers=headers), stored.body, token)


def rebuild(stored: Stored, rules: Rulebook, names: Names, now_ms: int) -> Rebuilt:
    """Its due moment stays; what is left of the delay is rounded up, so that it does not come early."""
    properties, lasting = _read(stored)
    way = itinerary(rules.ladder, max(0, stored.due_ms - now_ms), rules.tiers)
    kept = cut(properties.headers or b"", lambda name: name == _BCC)
    headers = kept + array_entry("BCC", (*way.keys, *lasting))
    message = Message(
        names.delay,
        stored.routing_key,
        replace(properties, headers=headers),
        stored.body,
        f"{stored.retry_id}:{stored.round}",
    )
    return Rebuilt(stored, message, first_queue(way, names, rules.ladder), way.delay_ms, lasting[-1])


def _read(stored: Stored) -> tuple[Properties, list[str]]:
    """Its properties, and the keys that stay: the last one is its destination's."""
    try:
        properties = Properties.decode(stored.properties)
        lasting = _lasting_keys(properties.headers or b"")
    except BadTableError as error:
        raise CannotRebuildError(f"its stored properties are damaged: {error}") from error
    if not lasting or lasting[-1].startswith(_WHO):
        raise CannotRebuildError("its stored headers do not say where it returns")
    return properties, lasting


def _lasting_keys(headers: bytes) -> list[str]:
    found = pick(headers, {_BCC}).get(_BCC)
    keys = [item.text() or "" for item in walk_array(found.value)] if found is not None and found.kind == b"A" else []
    return [key for key in keys if key.startswith(_LASTING)]

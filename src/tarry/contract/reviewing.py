"""The message that goes to a person: whole, with the reason."""

from __future__ import annotations

from tarry.contract import headers as h
from tarry.contract.encoding import bytes_entry, entry, head
from tarry.contract.fields import BadTableError, are_too_many, cut, scan
from tarry.contract.message import Refused, Request
from tarry.contract.properties import Properties
from tarry.contract.safety import FRAME_OVERHEAD, in_frame, safe

LONGEST_REASON = 1_000
SHORT_REASON = 80

_COPIES = frozenset(name.encode() for name in h.COPIES)
_DEATHS = frozenset(name.encode() for name in h.BROKERS_OWN)
_DEATH_PREFIXES = tuple(prefix.encode() for prefix in h.BROKERS_OWN_PREFIXES)
_OURS = h.OURS.encode()
_REASON = h.REVIEW_REASON.encode()


def for_review(item: Request | Refused, reason: str, round_: int, frame_max: int) -> Properties:
    """The whole message with the reason, and x-death as the evidence. Where the headers leave no room in one frame,
    first the evidence goes, then the length of the reason, and last the largest header: its name stands in the reason.
    """
    old = item.delivery.properties
    table = cut(_readable(old.headers or b""), _unwanted if old.user_id is None else _unwanted_beside_user_id)
    without_deaths = cut(table, _is_death)
    said, little = _said(item, reason, round_), _who(item, reason[:SHORT_REASON], round_)
    for headers in (table + said, without_deaths + said, without_deaths + little):
        properties = safe(old, headers)
        if in_frame(properties, frame_max):
            return properties
    return _squeezed(item, without_deaths, reason, round_, frame_max)


def _squeezed(item: Request | Refused, table: bytes, reason: str, round_: int, frame_max: int) -> Properties:
    """A producer with a larger frame limit than ours can send what we cannot."""
    old = item.delivery.properties
    room = frame_max - _size_beside(old, _who(item, _note(reason, ["?" * SHORT_REASON]), round_))
    left_out, size = set(), len(table)
    entries = scan(table)
    for place, (_, start, _, end) in sorted(enumerate(entries), key=lambda one: one[1][1] - one[1][3]):
        if size <= room:
            break
        left_out.add(place)
        size -= end - start
    kept = b"".join(table[start:end] for place, (_, start, _, end) in enumerate(entries) if place not in left_out)
    names = [entries[place][0].decode(errors="backslashreplace") for place in sorted(left_out)[:SHORT_REASON]]
    return safe(old, kept + _who(item, _note(reason, names), round_))


def _size_beside(old: Properties, said: bytes) -> int:
    """Bytes of the frame that are not the user's headers; a letter of the note has four at the most."""
    return safe(old, said).size() + FRAME_OVERHEAD + 2 * 3 * SHORT_REASON


def _note(reason: str, left_out: list[str]) -> str:
    return f"{reason[:SHORT_REASON]} (left out, too large for one frame: {', '.join(left_out)[:SHORT_REASON]})"


def _readable(table: bytes) -> bytes:
    """The broker wrote this table, so it should follow its grammar; one that does not, or has entries without an end,
    is kept as it is, in a wrapper that nobody can stumble over.
    """
    try:
        sound = not are_too_many(scan(table))
    except BadTableError:
        sound = False
    return table if sound else bytes_entry(head(h.BROKEN), table)


def _who(item: Request | Refused, reason: str, round_: int) -> bytes:
    return entry(h.REVIEW_REASON, reason[:LONGEST_REASON]) + entry(h.ID, item.retry_id) + entry(h.ROUND, round_)


def _said(item: Request | Refused, reason: str, round_: int) -> bytes:
    said = _who(item, reason, round_)
    failure, origin = item.failure if isinstance(item, Request) else None, item.origin
    if failure is not None:
        said += entry(h.COUNT, failure.retry_count)
    if origin.queue:
        said += entry(h.QUEUE, origin.queue) + entry(h.EXCHANGE, origin.exchange) + entry(h.KEY, origin.routing_key)
    if failure is not None and failure.first_failed_ms is not None:
        said += entry(h.SINCE, failure.first_failed_ms)
    return said + entry(h.FORM, "contract") if item.speaks_contract else said


def _unwanted(name: bytes) -> bool:
    return name in _COPIES or name == _REASON or (name.startswith(_OURS) and name not in _KEPT)


def _unwanted_beside_user_id(name: bytes) -> bool:
    """The property becomes a header of the same name as an earlier round's."""
    return name == _USER_ID or _unwanted(name)


def _is_death(name: bytes) -> bool:
    return name in _DEATHS or name.startswith(_DEATH_PREFIXES)


_USER_ID = h.USER_ID.encode()
_KEPT = frozenset({h.BROKEN.encode(), _USER_ID})

"""Builds the message for the review queue: the whole message with the reason."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, are_too_many, bytes_entry, cut, entry, head, pick, scan
from tarry.amqp.properties import Properties
from tarry.contract import headers as h
from tarry.contract.checks import can_name_queue, is_name
from tarry.contract.deaths import Death
from tarry.contract.envelope import Envelope, RequestSource, glimpse, read_form, stated_origin
from tarry.contract.header_reader import LenientReader, RefusalError
from tarry.contract.identity import message_id_of
from tarry.contract.message import NO_ORIGIN, Acceptance, Origin, Refused, Request
from tarry.contract.retry_headers import RetryHeaders, priority_of, read_retry_headers
from tarry.contract.safety import FRAME_OVERHEAD, in_frame, safe
from tarry.core.names import RESERVED

LONGEST_REASON = 1_000
SHORT_REASON = 80

_COPIES = frozenset(name.encode() for name in h.COPIES)
_DEATHS = frozenset(name.encode() for name in h.BROKERS_OWN)
_DEATH_PREFIXES = tuple(prefix.encode() for prefix in h.BROKERS_OWN_PREFIXES)
_OURS = h.OURS.encode()
_REASON = h.REVIEW_REASON.encode()


def for_review(item: Request | Refused, reason: str, round_: int, frame_max: int) -> Properties:
    """The properties of the whole message with its own priority, the reason, and x-death as evidence.

    If the headers do not fit into one frame, x-death is removed first, then the reason is shortened, and last the
    largest headers are removed: the reason names them.
    """
    old = _own_properties(item)
    table = cut(_readable(old.headers or b""), _unwanted if old.user_id is None else _unwanted_beside_user_id)
    without_deaths = cut(table, _is_death)
    own, short = _own_headers(item, reason, round_), _who(item, reason[:SHORT_REASON], round_)
    for headers in (table + own, without_deaths + own, without_deaths + short):
        properties = safe(old, headers)
        if in_frame(properties, frame_max):
            return properties
    return _squeezed(item, without_deaths, reason, round_, frame_max)


def _squeezed(item: Request | Refused, table: bytes, reason: str, round_: int, frame_max: int) -> Properties:
    """Remove the largest headers: a producer with a larger frame limit can send more than tarry can publish."""
    old = _own_properties(item)
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


def _own_properties(item: Request | Refused) -> Properties:
    return replace(item.delivery.properties, priority=item.priority)


def _size_beside(old: Properties, own: bytes) -> int:
    """Bytes of the frame besides the user's headers; a character of the note takes at most four."""
    return safe(old, own).size() + FRAME_OVERHEAD + 2 * 3 * SHORT_REASON


def _note(reason: str, left_out: list[str]) -> str:
    return f"{reason[:SHORT_REASON]} (left out, too large for one frame: {', '.join(left_out)[:SHORT_REASON]})"


def _readable(table: bytes) -> bytes:
    """The table if it is valid; otherwise its bytes, unchanged, as the value of one header that every client can read.

    The broker encoded the table, so it should be valid; but it may be malformed or have too many entries.
    """
    try:
        sound = not are_too_many(scan(table))
    except BadTableError:
        sound = False
    return table if sound else bytes_entry(head(h.BROKEN), table)


def _who(item: Request | Refused, reason: str, round_: int) -> bytes:
    return entry(h.REVIEW_REASON, reason[:LONGEST_REASON]) + entry(h.ID, item.retry_id) + entry(h.ROUND, round_)


def _own_headers(item: Request | Refused, reason: str, round_: int) -> bytes:
    own = _who(item, reason, round_)
    failure, origin = item.failure if isinstance(item, Request) else None, item.origin
    if failure is not None:
        own += entry(h.COUNT, failure.retry_count)
    if origin.queue:
        own += entry(h.QUEUE, origin.queue) + entry(h.EXCHANGE, origin.exchange) + entry(h.KEY, origin.routing_key)
    if failure is not None and failure.first_failed_ms is not None:
        own += entry(h.SINCE, failure.first_failed_ms)
    return own + entry(h.FORM, "contract") if item.speaks_contract else own


def _unwanted(name: bytes) -> bool:
    return name in _COPIES or name == _REASON or (name.startswith(_OURS) and name not in _KEPT)


def _unwanted_beside_user_id(name: bytes) -> bool:
    """As `_unwanted`, and an earlier round's user_id header, which the property replaces."""
    return name == _USER_ID or _unwanted(name)


def _is_death(name: bytes) -> bool:
    return name in _DEATHS or name.startswith(_DEATH_PREFIXES)


_USER_ID = h.USER_ID.encode()
_KEPT = frozenset({h.BROKEN.encode(), _USER_ID})


def refused(delivery: Delivery, retry_id: str, reason: str, accept: Acceptance | None) -> Refused:
    """A `Refused` for a delivery. Never fails: what cannot be read is left out.

    Without an `Acceptance` the delivery is a copy or a report, not a request: it gets no origin, so that a redrive
    sends it nowhere.
    """
    properties = delivery.properties
    message_id, origin, contract, priority = message_id_of(properties), NO_ORIGIN, False, properties.priority
    with contextlib.suppress(Exception):  # the delivery must reach review, whatever is wrong with it
        headers = _headers(delivery)
        own = read_retry_headers(headers.fields)
        if accept is not None:
            message_id, origin, contract = _read(delivery, headers, own, accept)
        if accept is None or origin.queue == own.queue or own.via is not None:
            priority = priority_of(own, properties.priority)
    return Refused(delivery, retry_id, _printable(reason), priority, message_id, origin, contract)


def _read(
    delivery: Delivery, headers: LenientReader, own: RetryHeaders, accept: Acceptance
) -> tuple[str | None, Origin, bool]:
    """Message id, origin, and whether the request was made by headers or by an envelope."""
    small = delivery if len(delivery.body) <= accept.largest_body else delivery._replace(body=b"")
    source = _source(small, headers, accept)
    message_id = source.message_id if isinstance(source, Envelope) else None
    if message_id is None or not is_name(message_id):
        message_id = message_id_of(delivery.properties)
    stated = stated_origin(source, headers)
    queue = stated.queue or own.queue or ""
    if not can_name_queue(queue):
        return message_id, NO_ORIGIN, False
    by_contract = (stated.queue and not isinstance(source, Death)) or (own.contract and queue == own.queue)
    return message_id, _sound(_first(stated, own) if queue == own.queue else stated, queue), bool(by_contract)


def _first(stated: Origin, own: RetryHeaders) -> Origin:
    """The origin with the original exchange and key, which tarry's headers carry from the second round on."""
    return Origin(
        stated.queue,
        stated.exchange if own.exchange is None else own.exchange,
        stated.routing_key if own.routing_key is None else own.routing_key,
    )


def _sound(origin: Origin, queue: str) -> Origin:
    """The origin with an exchange and a key that a message can be published with."""
    key = origin.routing_key
    exchange = origin.exchange if is_name(origin.exchange) else ""
    return Origin(queue, exchange, queue if not is_name(key) or key.startswith(RESERVED) else key)


def _headers(delivery: Delivery) -> LenientReader:
    table = delivery.properties.headers or b""
    try:
        entries = scan(table)
        return LenientReader({} if are_too_many(entries) else pick(table, h.READ, entries))
    except BadTableError:
        return LenientReader({})


def _source(delivery: Delivery, headers: LenientReader, accept: Acceptance) -> RequestSource:
    try:
        return read_form(delivery, headers, accept.names)[1]
    except (RefusalError, BadTableError):
        return glimpse(delivery.properties.content_type, delivery.body)


def _printable(reason: str) -> str:
    """The reason with unsafe characters escaped: it quotes input that Postgres or UTF-8 may be unable to represent."""
    return reason.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()

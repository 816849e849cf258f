"""The messages that tarry publishes: one that waits and returns, and one that a person looks at.

Body, properties and headers stay as they were, to the byte, but for what would do harm on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tarry.contract import headers as h
from tarry.contract.fields import array_entry, cut, entry
from tarry.contract.properties import PERSISTENT, Properties
from tarry.contract.request import Delivery, Refused, Request
from tarry.core.decide import Schedule
from tarry.core.names import Destination, id_key

FRAME_OVERHEAD = 8 + 12
"""Bytes of a content header frame around the properties."""


def returning(request: Request, decision: Schedule, round_: int, now_ms: int, destination: Destination) -> Properties:
    """What goes into the tier: the user's message, tarry's headers, and the way in BCC."""
    since = request.failure.first_failed_ms
    ours = [
        entry(h.ID, request.retry_id),
        entry(h.ROUND, round_),
        entry(h.COUNT, decision.retry_count),
        entry(h.DUE, decision.due_ms),
        entry(h.SINCE, now_ms if since is None else since),
        entry(h.QUEUE, request.origin.queue),
        entry(h.EXCHANGE, request.origin.exchange),
        entry(h.KEY, request.origin.routing_key),
    ]
    if request.speaks_contract:
        ours += [entry(h.FORM, "contract"), entry(h.RETRY_COUNT, decision.retry_count)]
        ours += [entry(h.MAX_RETRIES, decision.max_retries)]
    way = (*decision.itinerary.keys, id_key(request.retry_id, round_), destination.key)
    kept = _kept(request.delivery, _unwanted_contract if request.speaks_contract else _unwanted)
    headers = b"".join((kept, *ours, array_entry("BCC", way)))
    if request.form != "envelope":
        return _safe(request.delivery.properties, headers)
    message_id = (request.message_id or "").encode()[:255] or None
    return replace(_safe(request.delivery.properties, headers), content_type=None, message_id=message_id)


def for_review(item: Request | Refused, reason: str, round_: int, frame_max: int) -> Properties:
    """The whole message with the reason; where the headers leave no room for it, the message as it came."""
    delivery = item.delivery
    said = [entry(h.REVIEW_REASON, reason[:1_000]), entry(h.ID, item.retry_id), entry(h.ROUND, round_)]
    if isinstance(item, Request):
        said += [entry(h.COUNT, item.failure.retry_count), entry(h.QUEUE, item.origin.queue)]
        said += [entry(h.EXCHANGE, item.origin.exchange), entry(h.KEY, item.origin.routing_key)]
        said += [entry(h.SINCE, item.failure.first_failed_ms)] if item.failure.first_failed_ms is not None else []
        said += [entry(h.FORM, "contract")] if item.speaks_contract else []
    try:
        kept = _kept(delivery, _unwanted_in_review)
    except ValueError:
        # The broker wrote this table, so it can read it; what we cannot walk we pass on as it is.
        return _safe(delivery.properties, delivery.properties.headers)
    whole = _safe(delivery.properties, b"".join((kept, *said)))
    return whole if fits(whole, frame_max) else _safe(delivery.properties, kept)


def fits(properties: Properties, frame_max: int) -> bool:
    """A header frame over the limit would close the connection, and with it everyone's messages."""
    return properties.size() + FRAME_OVERHEAD <= frame_max


def _safe(properties: Properties, headers: bytes | None) -> Properties:
    """A foreign user_id closes the channel, an expiration ends the wait early, a transient message dies in a crash."""
    if properties.user_id is not None and headers is not None:
        headers += entry(h.USER_ID, properties.user_id.decode(errors="backslashreplace"))
    return replace(
        properties, headers=headers, delivery_mode=PERSISTENT, expiration=None, user_id=None, cluster_id=None
    )


def _kept(delivery: Delivery, unwanted: Callable[[bytes], bool]) -> bytes:
    return cut(delivery.properties.headers or b"", unwanted)


def _unwanted(name: bytes) -> bool:
    return name in _BROKERS_OWN or name.startswith(_PREFIXES)


def _unwanted_contract(name: bytes) -> bool:
    return name in _REWRITTEN or _unwanted(name)


def _unwanted_in_review(name: bytes) -> bool:
    """x-death stays: it is the evidence."""
    return name in _COPIES or name.startswith(h.OURS.encode()) or name == h.REVIEW_REASON.encode()


_COPIES = frozenset({b"CC", b"BCC"})
_BROKERS_OWN = frozenset(name.encode() for name in h.BROKERS_OWN)
_PREFIXES = (h.OURS.encode(), *(prefix.encode() for prefix in h.BROKERS_OWN_PREFIXES))
_REWRITTEN = frozenset(name.encode() for name in (*h.OF_THIS_FAILURE, h.RETRY_COUNT, h.MAX_RETRIES))

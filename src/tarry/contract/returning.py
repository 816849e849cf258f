"""The message that waits in a tier and returns.

Body, properties and headers stay as they were, to the byte, but for what would do harm on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tarry.contract import headers as h
from tarry.contract.encoding import array_of, head, integer_entry, text_entry, text_item
from tarry.contract.fields import cut
from tarry.contract.identity import message_id_of
from tarry.contract.message import Origin, Request
from tarry.contract.properties import Properties
from tarry.contract.reviewing import for_review
from tarry.contract.safety import in_frame, safe
from tarry.core.decide import Schedule
from tarry.core.ladder import Itinerary
from tarry.core.names import Destination, id_key

ROOM_FOR_DEATHS = 8_192
"""Bytes that the broker may add on the way, as x-death: some clients hang up over a frame past the limit."""


def returning(request: Request, decision: Schedule, round_: int, now_ms: int, destination: Destination) -> Properties:
    """What goes into the tier: the user's message, tarry's headers, and the way in BCC."""
    failure = request.failure
    since = now_ms if failure.first_failed_ms is None else failure.first_failed_ms
    headers = (
        cut(request.delivery.properties.headers or b"", _cut_for(request), request.entries),
        text_entry(_ID, request.retry_id),
        integer_entry(_ROUND, round_),
        integer_entry(_COUNT, decision.retry_count),
        integer_entry(_MOST, decision.max_retries),
        integer_entry(_DUE, decision.due_ms),
        integer_entry(_SINCE, since),
        b"" if decision.policy.max_age is None else integer_entry(_DEADLINE, since + decision.policy.max_age),
        _home(request.origin),
        text_entry(_VIA, "exchange") if destination.kind == "exchange" else b"",
        _contract(request, decision) if request.speaks_contract else b"",
        array_of(_BCC, _way(decision.itinerary), text_item(id_key(request.retry_id, round_)), _item(destination.key)),
    )
    properties = safe(request.delivery.properties, b"".join(headers))
    if request.form == "envelope":
        _unwrap(properties, request)
    return properties


def fits(properties: Properties, frame_max: int) -> bool:
    """Whether a message can travel through the tiers and still be delivered in one piece."""
    return in_frame(properties, frame_max, ROOM_FOR_DEATHS)


def _contract(request: Request, decision: Schedule) -> bytes:
    """For the consumer to read; and for us, that a later reject of this message may still speak the contract."""
    said = _CONTRACT_FORM + integer_entry(_RETRY_COUNT, decision.retry_count)
    most = request.failure.max_retries
    return said if request.form != "envelope" or most is None else said + integer_entry(_MAX_RETRIES, most)


def _unwrap(properties: Properties, request: Request) -> None:
    """The content type was the envelope's; the id is the one it held, if it held one."""
    properties.content_type = None
    if request.message_id is not None and request.message_id != message_id_of(properties):
        properties.message_id = request.message_id.encode()


@lru_cache(maxsize=8_192)
def _home(origin: Origin) -> bytes:
    """Few origins too."""
    return (
        text_entry(_QUEUE, origin.queue) + text_entry(_EXCHANGE, origin.exchange) + text_entry(_KEY, origin.routing_key)
    )


@lru_cache(maxsize=8_192)
def _way(itinerary: Itinerary) -> bytes:
    """Few itineraries make up most of the traffic."""
    return b"".join(map(text_item, itinerary.keys))


_item = lru_cache(maxsize=8_192)(text_item)


def _cut_for(request: Request) -> Callable[[bytes], bool]:
    """What does not travel on. The user_id of an earlier round does: the property itself is gone by then."""
    names = (_ENVELOPE if request.form == "envelope" else _CONTRACT) if request.speaks_contract else _HARMFUL
    keeps_user_id = request.knows_round and request.delivery.properties.user_id is None

    def unwanted(name: bytes) -> bool:
        return name in names or (name.startswith(_PREFIXES) and not (keeps_user_id and name == _RAW_USER_ID))

    return unwanted


def _raw(*names: str) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)


_HARMFUL = _raw(*h.BROKERS_OWN)
_CONTRACT = _HARMFUL | _raw(*h.OF_THIS_FAILURE, h.RETRY_COUNT)
_ENVELOPE = _CONTRACT | _raw(h.MAX_RETRIES)
_PREFIXES = (h.OURS.encode(), *(prefix.encode() for prefix in h.BROKERS_OWN_PREFIXES))
_RAW_USER_ID = h.USER_ID.encode()

_ID, _ROUND, _COUNT, _MOST = head(h.ID), head(h.ROUND), head(h.COUNT), head(h.MOST)
_DUE, _SINCE, _QUEUE, _EXCHANGE = head(h.DUE), head(h.SINCE), head(h.QUEUE), head(h.EXCHANGE)
_KEY, _VIA, _RETRY_COUNT, _MAX_RETRIES = head(h.KEY), head(h.VIA), head(h.RETRY_COUNT), head(h.MAX_RETRIES)
_DEADLINE, _BCC = head(h.DEADLINE), head("BCC")
_CONTRACT_FORM = text_entry(head(h.FORM), "contract")

__all__ = ["ROOM_FOR_DEATHS", "fits", "for_review", "returning"]

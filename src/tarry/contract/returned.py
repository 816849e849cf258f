"""Builds the message that waits in a tier and returns.

Body, properties and headers stay unchanged, byte for byte, except those that would do harm on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tarry.amqp.field_tables import array_of, cut, head, integer_entry, text_entry, text_item
from tarry.amqp.properties import Properties
from tarry.contract import headers as h
from tarry.contract.identity import message_id_of
from tarry.contract.layover import leg_entries
from tarry.contract.message import Origin, Request
from tarry.contract.retry_headers import priority_text
from tarry.contract.review import for_review
from tarry.contract.safety import in_frame, safe
from tarry.core.decide import Schedule
from tarry.core.ladder import Itinerary
from tarry.core.names import AUTOMATIC, LONGEST_NAME, Destination, Gate, GateKind, id_key

ROOM_FOR_DEATHS = 8_192
"""Bytes reserved for x-death, which the broker adds: some clients disconnect if a frame exceeds the limit."""


def returning(
    request: Request,
    decision: Schedule,
    round_: int,
    now_ms: int,
    destination: Destination,
    *,
    automatic: bool = True,
) -> Properties:
    """The properties of the message in the tier: the user's, tarry's headers, and its keys in BCC.

    The keys are those of the itinerary, of a cancellation, of its check, of what it can be paused by, and of its
    destination. If the itinerary does not hold the whole delay, the last three are in a header (see layover).
    `automatic` is False for a retry that an operator asked for: a pause of automatic retries does not hold it, and
    nothing is asked about it.
    """
    failure, priority, way, trace = request.failure, decision.policy.return_priority, decision.itinerary, request.trace
    cancel_key = text_item(id_key(request.retry_id, round_))
    gates, home = _gates(decision.policy.name, failure.job_type, automatic=automatic), _item(destination.key)
    if automatic and decision.policy.check is not None:
        gates = _item(decision.policy.check.key) + gates
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
        b"" if trace is None or not trace.sampled else integer_entry(_SCHEDULED, decision.due_ms - way.delay_ms),
        _home(request.origin),
        text_entry(_VIA, "exchange") if destination.kind == "exchange" else b"",
        b"" if priority is None else text_entry(_OWN_PRIORITY, priority_text(request.priority)),
        _contract(request, decision) if request.speaks_contract else b"",
        leg_entries(way, 1, cancel_key, gates + home)
        if way.leg_ms
        else array_of(_BCC, _way(way), cancel_key, gates, home),
    )
    properties = safe(request.delivery.properties, b"".join(headers))
    properties.priority = request.priority if priority is None else priority
    if request.form == "envelope":
        _unwrap(properties, request)
    return properties


def fits(properties: Properties, frame_max: int) -> bool:
    """Whether the header still fits into one frame after the message has passed through the tiers."""
    return in_frame(properties, frame_max, ROOM_FOR_DEATHS)


def _contract(request: Request, decision: Schedule) -> bytes:
    """Counts for the consumer, and a mark that a later reject of this message may still use the contract."""
    entries = _CONTRACT_FORM + integer_entry(_RETRY_COUNT, decision.retry_count)
    if request.form != "envelope":
        return entries
    most, owner = request.failure.max_retries, request.failure.owner
    entries += b"" if most is None else integer_entry(_MAX_RETRIES, most)
    return entries if owner is None else entries + text_entry(_OWNER, owner)


def _unwrap(properties: Properties, request: Request) -> None:
    """Remove the envelope's content type, and set the message id from the envelope if it has one."""
    properties.content_type = None
    if request.message_id is not None and request.message_id != message_id_of(properties):
        properties.message_id = request.message_id.encode()


@lru_cache(maxsize=32_768)
def _home(origin: Origin) -> bytes:
    """The origin headers; cached, since there are fewer origins than messages."""
    return (
        text_entry(_QUEUE, origin.queue) + text_entry(_EXCHANGE, origin.exchange) + text_entry(_KEY, origin.routing_key)
    )


@lru_cache(maxsize=8_192)
def _way(itinerary: Itinerary) -> bytes:
    """The routing keys of an itinerary; cached, since few itineraries make up most of the traffic."""
    return b"".join(map(text_item, itinerary.keys))


def _gates(policy: str, job_type: str | None, *, automatic: bool) -> bytes:
    """The keys of what the message can be paused by; cached, unless a job type is so long that it would fill memory."""
    of_policy = (_GATE_OF_AUTOMATIC if automatic else b"") + _gate_item("policy", policy)
    if job_type is None:
        return of_policy
    of_type = _gate_item if len(job_type) <= LONGEST_NAME else _gate_item.__wrapped__
    return of_policy + of_type("job-type", job_type)


@lru_cache(maxsize=8_192)
def _gate_item(kind: GateKind, name: str) -> bytes:
    return text_item(Gate(kind, name).key)


_GATE_OF_AUTOMATIC = text_item(AUTOMATIC.key)


_item = lru_cache(maxsize=32_768)(text_item)


def _cut_for(request: Request) -> Callable[[bytes], bool]:
    """Which headers to remove. The user_id header of an earlier round stays: the property is gone by then."""
    names = (_ENVELOPE if request.form == "envelope" else _CONTRACT) if request.speaks_contract else _HARMFUL
    keeps_user_id = request.knows_round and request.delivery.properties.user_id is None

    def unwanted(name: bytes) -> bool:
        return name in names or (name.startswith(_PREFIXES) and not (keeps_user_id and name == _RAW_USER_ID))

    return unwanted


def _raw(*names: str) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)


_HARMFUL = _raw(*h.BROKERS_OWN)
_CONTRACT = _HARMFUL | _raw(*h.OF_THIS_FAILURE, h.RETRY_COUNT)
_ENVELOPE = _CONTRACT | _raw(h.MAX_RETRIES, h.OWNER)
_PREFIXES = (h.OURS.encode(), *(prefix.encode() for prefix in h.BROKERS_OWN_PREFIXES))
_RAW_USER_ID = h.USER_ID.encode()

_ID, _ROUND, _COUNT, _MOST = head(h.ID), head(h.ROUND), head(h.COUNT), head(h.MOST)
_DUE, _SINCE, _QUEUE, _EXCHANGE = head(h.DUE), head(h.SINCE), head(h.QUEUE), head(h.EXCHANGE)
_KEY, _VIA, _RETRY_COUNT, _MAX_RETRIES = head(h.KEY), head(h.VIA), head(h.RETRY_COUNT), head(h.MAX_RETRIES)
_DEADLINE, _OWN_PRIORITY, _OWNER, _BCC = head(h.DEADLINE), head(h.OWN_PRIORITY), head(h.OWNER), head("BCC")
_SCHEDULED = head(h.SCHEDULED)
_CONTRACT_FORM = text_entry(head(h.FORM), "contract")

__all__ = ["ROOM_FOR_DEATHS", "fits", "for_review", "returning"]

"""From a message in review to the one that is sent on. Pure: the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tarry.broker.publisher import Message
from tarry.contract import headers as h
from tarry.contract.checks import check_origin
from tarry.contract.envelope import Envelope, is_envelope, is_surely_envelope, open_envelope
from tarry.contract.fields import BadTableError, cut, pick
from tarry.contract.message import Acceptance, Delivery, Origin, Request
from tarry.contract.reading import RefusalError
from tarry.contract.returning import fits, returning
from tarry.control.review.card import Card, Key
from tarry.control.review.edits import Edits, edited
from tarry.core.decide import Failure, Rulebook, Schedule
from tarry.core.ladder import Itinerary, first_queue, itinerary
from tarry.core.names import RESERVED, Destination
from tarry.core.policy import MOST_RETRIES, ErrorClass, Policy

AT_ONCE = Itinerary(None, (), 0)
"""No wait at all: it enters behind the ladder and the cancelled gate."""

_REASON = h.REVIEW_REASON.encode()
_DEATHS = h.DEATHS.encode()


class CannotResendError(Exception):
    """Why a message cannot be sent on as asked; it stays in review."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How messages are sent on."""

    fresh: bool = True
    """Begin counting anew; else one more attempt: the count stays, so that the next failure comes to review again."""
    to: str | None = None
    """Another queue than the one it failed in."""
    delay_ms: int = 0
    edits: Edits = field(default_factory=Edits)


@dataclass(frozen=True, slots=True)
class Resent:
    """The message, and what the books have to know of it."""

    key: Key
    message: Message
    destination: Destination
    queue: str
    retry_count: int
    tier: str
    delay_ms: int
    due_ms: int
    body: bytes | None
    """Where it differs from the one in review."""


@dataclass(frozen=True, slots=True)
class House:
    """What all messages of an installation share."""

    accept: Acceptance
    rules: Rulebook
    frame_max: int


def resend(delivery: Delivery, card: Card, manner: Manner, house: House, now_ms: int) -> Resent:
    """The same round goes on: what fails again is the next one, and it is known who it is."""
    accept, rules = house.accept, house.rules
    if card.key is None:
        raise CannotResendError("it has no tarry-id: run `tarry review check --adopt` first")
    origin = _origin(card, manner.to, accept)
    request = _request(delivery, card, origin, manner)
    if len(request.body) > accept.largest_body:
        raise CannotResendError(f"its body has {len(request.body):,} bytes, and retries carry {accept.largest_body:,}")
    policy = rules.policy_for(request.failure) or rules.policies[-1]
    way = itinerary(rules.ladder, manner.delay_ms, rules.tiers) if manner.delay_ms else AT_ONCE
    due_ms = now_ms + way.delay_ms
    most = _most(request.failure, policy)
    decision = Schedule(policy, ErrorClass.RETRYABLE, request.failure.retry_count, most, way, due_ms)
    destination = _destination(origin, policy, manner)
    properties = returning(request, decision, card.key[1], now_ms, destination)
    if not fits(properties, house.frame_max):
        raise CannotResendError("its headers leave no room for tarry's own in one frame: drop some with --drop-header")
    names = accept.names
    exchange = names.delay if way.delay_ms else names.relay
    retry_id, round_ = card.key
    return Resent(
        key=card.key,
        message=Message(exchange, origin.routing_key, properties, request.body, f"{retry_id}:{round_}"),
        destination=destination,
        queue=origin.queue,
        retry_count=request.failure.retry_count,
        tier=first_queue(way, names, rules.ladder) if way.digits or way.tier_ms else names.relay,
        delay_ms=way.delay_ms,
        due_ms=due_ms,
        body=None if request.body is delivery.body else request.body,
    )


def _origin(card: Card, to: str | None, accept: Acceptance) -> Origin:
    queue = to or card.queue
    if not queue:
        raise CannotResendError("it does not say where it failed: name a queue with --to")
    exchange = card.exchange if queue == card.queue else ""
    key = card.routing_key if card.queue and not card.routing_key.startswith(RESERVED) else queue
    origin = Origin(queue, exchange, key)
    try:
        check_origin(origin, accept)
    except RefusalError as refusal:
        raise CannotResendError(f"{refusal}: name another queue with --to, or widen `destinations`") from None
    return origin


def _destination(origin: Origin, policy: Policy, manner: Manner) -> Destination:
    if policy.return_to == "exchange" and origin.exchange and manner.to is None:
        return Destination("exchange", origin.exchange)
    return Destination("queue", origin.queue)


def _request(delivery: Delivery, card: Card, origin: Origin, manner: Manner) -> Request:
    envelope = _envelope(delivery, card, manner)
    table = cut(delivery.properties.headers or b"", _REASON.__eq__)
    properties = edited(replace(delivery.properties, headers=table), manner.edits)
    body = envelope.original_payload if envelope else delivery.body
    failure = Failure(
        origin.queue,
        0 if manner.fresh else card.retry_count,
        card.key[1] if card.key else 0,
        None if manner.fresh else card.since_ms,
        _asked_most(envelope) if envelope else card.max_retries,
        priority=card.priority,
        job_type=card.job_type,
    )
    return Request(
        delivery=Delivery(delivery.body, properties, delivery.exchange, delivery.routing_key),
        form="envelope" if envelope else "headers",
        retry_id=card.key[0] if card.key else "",
        deduplicable=True,
        knows_round=True,
        message_id=(envelope.message_id or card.message_id) if envelope else card.message_id,
        origin=origin,
        failure=failure,
        body=body if manner.edits.body is None else manner.edits.body,
        speaks_contract=card.contract,
    )


def _envelope(delivery: Delivery, card: Card, manner: Manner) -> Envelope | None:
    """Review has the whole request; where that was an envelope, what returns is the payload in it."""
    content_type = delivery.properties.content_type
    surely = is_surely_envelope(content_type)
    if not card.contract or not is_envelope(content_type) or (not surely and (card.names_queue or _died(delivery))):
        return None
    try:
        found = open_envelope(content_type, delivery.body)
    except RefusalError as refusal:
        if manner.edits.body is None:
            raise CannotResendError(f"{refusal}: give its payload with --edit-body") from None
        return None
    return found if found.original_queue == card.queue or (surely and not found.original_queue) else None


def _died(delivery: Delivery) -> bool:
    try:
        return _DEATHS in pick(delivery.properties.headers or b"", {_DEATHS})
    except BadTableError:
        return True


def _asked_most(envelope: Envelope) -> int | None:
    """A number that makes no sense is why it is in review; the policy's takes its place."""
    most = envelope.max_retries
    return most if most is not None and 0 <= most <= MOST_RETRIES else None


def _most(failure: Failure, policy: Policy) -> int:
    return policy.max_retries if failure.max_retries is None else min(failure.max_retries, policy.ceiling)

"""Builds the message that a redrive publishes, with an operator's edits to its body and application headers. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, cut, pick, table
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message
from tarry.contract import headers as h
from tarry.contract.checks import check_origin
from tarry.contract.envelope import Envelope, is_envelope, is_surely_envelope, open_envelope
from tarry.contract.header_reader import RefusalError, sane_owner
from tarry.contract.layover import content_of, without_legs
from tarry.contract.message import Acceptance, Origin, Request
from tarry.contract.returned import fits, returning
from tarry.contract.trace import trace_of
from tarry.core.decide import Failure, Rulebook, Schedule
from tarry.core.ladder import Itinerary, first_queue, itinerary
from tarry.core.names import RESERVED, Destination
from tarry.core.policy import MOST_RETRIES, ErrorClass, Policy
from tarry.errors import SettingsError
from tarry.operations.review.message import Key, ReviewHeaders, read_review_headers
from tarry.store.rows import Leg, LegKey

_RESERVED = frozenset({h.REVIEW_REASON, *h.BROKERS_OWN})
_RESERVED_PREFIXES = (h.OURS, *h.BROKERS_OWN_PREFIXES)


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes to a message; none by default."""

    headers: Mapping[str, Any] = field(default_factory=dict)
    """Headers to set; they replace existing values."""
    dropped: tuple[str, ...] = ()
    """Headers to remove."""
    body: bytes | None = None
    """The new payload; None leaves it as it is."""

    def __bool__(self) -> bool:
        return bool(self.headers or self.dropped or self.body is not None)

    def summary(self) -> dict[str, Any]:
        """What was changed, for the history."""
        changes: dict[str, Any] = {"headers": dict(self.headers), "dropped": list(self.dropped)}
        return {name: value for name, value in changes.items() if value} | (
            {"body_size": len(self.body)} if self.body is not None else {}
        )


def edits_from(set_headers: Sequence[str] = (), drop_headers: Sequence[str] = (), body: bytes | None = None) -> Edits:
    """Parses command-line edits: `name=text`, or `name:=json` for a number, a flag or a list."""
    return checked(Edits(dict(map(_assignment, set_headers)), tuple(drop_headers), body))


def checked(edits: Edits) -> Edits:
    """Returns the edits, or raises an error that names a header that cannot be edited."""
    for name in (*edits.headers, *edits.dropped):
        if not name or name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
            raise SettingsError(
                f"The header {name!r} belongs to tarry or the broker and cannot be edited: use --reset-attempts, --to "
                "or --delay for what tarry's own headers say."
            )
    if "\x00" in "".join(_texts([edits.headers, edits.dropped])):
        raise SettingsError("The headers cannot be set: one of them contains a NUL.")
    try:
        table(edits.headers)
    except (ValueError, UnicodeEncodeError) as error:
        raise SettingsError(f"The headers cannot be set: {error}") from None
    return edits


def _texts(value: Any) -> Iterator[str]:
    """Every name and every string in the value, at any depth."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from _texts([*value, *value.values()])
        case list() | tuple():
            for one in value:
                yield from _texts(one)


def _assignment(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SettingsError(f"`{text}`: write a header as name=text, or name:=value for JSON such as 5 or true")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError:
        raise SettingsError(
            f"`{text}`: what follows := must be JSON, as in retries:=5; text is set with name=text"
        ) from None


def edited(properties: Properties, edits: Edits) -> Properties:
    """Applies the header edits. Other headers stay unchanged, byte for byte."""
    if not edits.headers and not edits.dropped:
        return properties
    gone = {name.encode() for name in (*edits.headers, *edits.dropped)}
    kept = cut(properties.headers or b"", gone.__contains__)
    return replace(properties, headers=kept + table(edits.headers))


AT_ONCE = Itinerary(None, (), 0)
"""No delay: the message skips the ladder and the cancelled gate."""

_REASON = h.REVIEW_REASON.encode()
_DEATHS = h.DEATHS.encode()


class CannotRedriveError(Exception):
    """Why a message cannot be redriven as requested; it stays in review."""


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """How messages are redriven."""

    reset_attempts: bool = True
    """Reset the attempts. Otherwise the count stays: one more attempt, and the next failure goes to review again."""
    to: str | None = None
    """A queue other than the one the message failed in."""
    delay_ms: int = 0
    edits: Edits = field(default_factory=Edits)


@dataclass(frozen=True, slots=True)
class Redriven:
    """The message to publish, and what the store records about it."""

    key: Key
    message: Message
    destination: Destination
    queue: str
    retry_count: int
    tier: str
    delay_ms: int
    due_ms: int
    body: bytes | None
    """The new body; None if it is the same as in review."""
    leg: Leg | None = None
    """Its first leg, if the delay is longer than the ladder holds."""

    def stored_properties(self) -> bytes:
        if self.leg is None:
            return self.message.encoded_properties()
        return b"".join(without_legs(self.message.properties).encode())


@dataclass(frozen=True, slots=True)
class RedriveContext:
    """What all messages of an installation share."""

    accept: Acceptance
    rules: Rulebook
    frame_max: int


def redrive(
    delivery: Delivery, headers: ReviewHeaders, options: RedriveOptions, redrive_context: RedriveContext, now_ms: int
) -> Redriven:
    """Builds the message in the same round. If it fails again, that is the next round of the same retry id."""
    accept, rules = redrive_context.accept, redrive_context.rules
    if headers.key is None:
        raise CannotRedriveError("it has no tarry-id: run `tarry review check --adopt` first")
    origin = _origin(headers, options.to, accept)
    request = _request(delivery, headers, origin, options)
    if len(request.body) > accept.largest_body:
        raise CannotRedriveError(f"its body has {len(request.body):,} bytes, and retries carry {accept.largest_body:,}")
    policy = rules.policy_for(request.failure) or rules.policies[-1]
    way = itinerary(rules.ladder, options.delay_ms, rules.tiers) if options.delay_ms else AT_ONCE
    due_ms = now_ms + way.delay_ms
    most = _most(request.failure, policy)
    decision = Schedule(policy, ErrorClass.RETRYABLE, request.failure.retry_count, most, way, due_ms)
    destination = _destination(origin, policy, options)
    properties = returning(request, decision, headers.key[1], now_ms, destination, automatic=False)
    if not fits(properties, redrive_context.frame_max):
        raise CannotRedriveError("its headers leave no room for tarry's own in one frame: drop some with --drop-header")
    names = accept.names
    exchange = names.delay if way.delay_ms else names.relay
    retry_id, round_ = headers.key
    tier = first_queue(way, names, rules.ladder) if way.digits or way.tier_ms else names.relay
    first = LegKey(retry_id, round_, due_ms, content_of(properties, request.body), 1) if way.leg_ms else None
    return Redriven(
        key=headers.key,
        message=Message(exchange, origin.routing_key, properties, request.body, f"{retry_id}:{round_}"),
        destination=destination,
        queue=origin.queue,
        retry_count=request.failure.retry_count,
        tier=tier,
        delay_ms=way.delay_ms,
        due_ms=due_ms,
        body=None if request.body is delivery.body else request.body,
        leg=None if first is None else Leg.of(first, way, tier, now_ms),
    )


def _origin(headers: ReviewHeaders, to: str | None, accept: Acceptance) -> Origin:
    queue = to or headers.queue
    if not queue:
        raise CannotRedriveError("it does not say where it failed: name a queue with --to")
    exchange = headers.exchange if queue == headers.queue else ""
    key = headers.routing_key if headers.queue and not headers.routing_key.startswith(RESERVED) else queue
    origin = Origin(queue, exchange, key)
    try:
        check_origin(origin, accept)
    except RefusalError as refusal:
        raise CannotRedriveError(f"{refusal}: name another queue with --to, or widen `destinations`") from None
    return origin


def _destination(origin: Origin, policy: Policy, options: RedriveOptions) -> Destination:
    if policy.return_to == "exchange" and origin.exchange and options.to is None:
        return Destination("exchange", origin.exchange)
    return Destination("queue", origin.queue)


def _request(delivery: Delivery, headers: ReviewHeaders, origin: Origin, options: RedriveOptions) -> Request:
    envelope = _envelope(delivery, headers, options)
    table = cut(delivery.properties.headers or b"", _REASON.__eq__)
    properties = edited(replace(delivery.properties, headers=table), options.edits)
    body = envelope.original_payload if envelope else delivery.body
    failure = Failure(
        origin.queue,
        0 if options.reset_attempts else headers.retry_count,
        headers.key[1] if headers.key else 0,
        None if options.reset_attempts else headers.since_ms,
        _asked_most(envelope) if envelope else headers.max_retries,
        priority=headers.priority,
        job_type=headers.job_type,
        owner=(_owner(envelope) if envelope else None) or headers.owner,
    )
    return Request(
        delivery=Delivery(delivery.body, properties, delivery.exchange, delivery.routing_key),
        form="envelope" if envelope else "headers",
        retry_id=headers.key[0] if headers.key else "",
        deduplicable=True,
        knows_round=True,
        message_id=(envelope.message_id or headers.message_id) if envelope else headers.message_id,
        origin=origin,
        failure=failure,
        body=body if options.edits.body is None else options.edits.body,
        priority=headers.own_priority,
        speaks_contract=headers.contract,
        trace=trace_of(pick(properties.headers or b"", h.READ)),
    )


def _envelope(delivery: Delivery, headers: ReviewHeaders, options: RedriveOptions) -> Envelope | None:
    """Review stores the whole request. If that was an envelope, the redrive returns the payload inside it."""
    content_type = delivery.properties.content_type
    surely = is_surely_envelope(content_type)
    if (
        not headers.contract
        or not is_envelope(content_type)
        or (not surely and (headers.names_queue or _died(delivery)))
    ):
        return None
    try:
        found = open_envelope(content_type, delivery.body)
    except RefusalError as refusal:
        if options.edits.body is None:
            raise CannotRedriveError(f"{refusal}: give its payload with --edit-body") from None
        return None
    return found if found.original_queue == headers.queue or (surely and not found.original_queue) else None


def payload_inside(delivery: Delivery) -> bytes:
    """What a redrive of this message returns, unless it is edited: of an envelope, the payload in it."""
    try:
        envelope = _envelope(delivery, read_review_headers(delivery), RedriveOptions())
    except CannotRedriveError:
        envelope = None
    return envelope.original_payload if envelope else delivery.body


def _died(delivery: Delivery) -> bool:
    try:
        return _DEATHS in pick(delivery.properties.headers or b"", {_DEATHS})
    except BadTableError:
        return True


def _asked_most(envelope: Envelope) -> int | None:
    """An invalid number is why the message is in review; the policy's number replaces it."""
    most = envelope.max_retries
    return most if most is not None and 0 <= most <= MOST_RETRIES else None


def _owner(envelope: Envelope) -> str | None:
    try:
        return sane_owner(envelope.owner)
    except RefusalError:
        return None


def _most(failure: Failure, policy: Policy) -> int:
    return policy.max_retries if failure.max_retries is None else min(failure.max_retries, policy.ceiling)

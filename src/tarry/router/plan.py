"""The plan for one request: its decision, and the message and the audit record that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract.identity import id_identity, is_id_identity, retry_id
from tarry.contract.layover import content_of, without_legs
from tarry.contract.message import Refused, Request
from tarry.contract.returned import fits, for_review, returning
from tarry.core.decide import Decision, Review, Rulebook, Schedule, Skip, hint_of
from tarry.core.ladder import Ladder, first_queue, itinerary
from tarry.core.names import Destination, Names
from tarry.core.policy import Deduplicate, Policy
from tarry.core.states import State
from tarry.store.rows import Claim, Granted, Leg, LegKey, Record

ROOM_FOR_THE_REST = 16_384
"""An upper bound in bytes for all properties except the headers, plus everything that the broker adds on the way."""


class RoutePlan(NamedTuple):
    """One request with its decision, before the broker has confirmed anything."""

    item: Request | Refused
    round: int
    decision: Decision
    now_ms: int

    @property
    def token(self) -> str:
        return f"{self.item.retry_id}:{self.round}"

    @property
    def queue(self) -> str:
        """The origin queue, empty where none could be found."""
        return self.item.origin.queue

    @property
    def destination(self) -> Destination:
        """The exchange only if the policy says so and there is one: the default exchange means the queue."""
        if not isinstance(self.item, Request):
            raise TypeError("a refused delivery has no destination")
        origin = self.item.origin
        if isinstance(self.decision, Schedule) and self.decision.policy.return_to == "exchange" and origin.exchange:
            return Destination("exchange", origin.exchange)
        return Destination("queue", origin.queue)


def identified(request: Request, policy: Policy | None, new_id: Callable[[], str]) -> Request:
    """The request with the identity that its policy uses. A request that names its retry keeps that retry id."""
    mode = Deduplicate.CONTENT if policy is None else policy.deduplicate
    if mode is Deduplicate.CONTENT or not request.deduplicable or request.message_id is None:
        return request
    if mode is Deduplicate.OFF:
        return request if request.knows_round else request._replace(retry_id=new_id(), deduplicable=False)
    identity = id_identity(request.origin.queue, request.message_id)
    known = request.retry_id if request.knows_round else retry_id(identity)
    return request._replace(retry_id=known, identity=identity)


def is_new(request: Request) -> bool:
    """Whether the request cannot be matched to a retry: it names no round of one, and cannot be recognised."""
    return not request.knows_round and not request.deduplicable


def as_new(request: Request) -> Granted:
    """The answer that a claim of a new request would get. No claim is made: if this router were disconnected, the
    request would be delivered again under another id, and the claim would never be closed.
    """
    failure = request.failure
    return Granted(request.retry_id, failure.round + 1, failure.retry_count, failure.first_failed_ms)


def claim_of(request: Request) -> Claim:
    failure = request.failure
    return Claim(
        retry_id=request.retry_id,
        round=failure.round + 1,
        knows_round=request.knows_round,
        redelivered=request.delivery.redelivered and request.form != "reject",
        retry_count=failure.retry_count,
        queue=request.origin.queue,
        message_id=request.message_id,
        since_ms=failure.first_failed_ms,
        identity=request.identity,
        matchable=request.deduplicable,
        death=request.death,
        by_content=request.identity is None or not is_id_identity(request.identity),
    )


def corrected(request: Request, granted: Granted) -> Request:
    """The request with the audit's values: a consumer that lost tarry's headers must not loop forever."""
    failure = request.failure
    known = (request.retry_id, failure.round + 1, failure.retry_count, failure.first_failed_ms)
    if known == granted:
        return request
    better = failure._replace(
        round=granted.round - 1, retry_count=granted.retry_count, first_failed_ms=granted.since_ms
    )
    return request._replace(retry_id=granted.retry_id, failure=better)


def to_review(plan: RoutePlan, reason: str) -> RoutePlan:
    """The same plan, changed to review."""
    decision = plan.decision
    return plan._replace(decision=Review(decision.policy, decision.error_class, reason))


def to_skip(plan: RoutePlan, decision: Schedule, reason: str) -> RoutePlan:
    """The same plan, changed to a skip. Only what would be scheduled can be skipped."""
    return plan._replace(decision=Skip(decision.policy, decision.error_class, reason))


def detour(plan: RoutePlan, outcome: PublishOutcome, rules: Rulebook) -> RoutePlan | None:
    """The same delay by the ladder alone, if the tier refused the message; in several legs if it is a long one. If the
    tier is missing, by the shared ladder: of a lane that is removed, nothing is left.
    """
    decision = plan.decision
    refused = outcome in (PublishOutcome.RETURNED, PublishOutcome.NACKED)
    if not refused or not isinstance(decision, Schedule):
        return None
    before = decision.itinerary
    lane = before.lane if outcome is PublishOutcome.NACKED else None
    if before.tier_ms is None and before.lane == lane:
        return None
    way = itinerary(rules.ladder, before.delay_ms, (), lane=lane)
    return plan._replace(decision=decision._replace(itinerary=way, due_ms=plan.now_ms + way.delay_ms))


def message_of(plan: RoutePlan, names: Names, frame_max: int) -> tuple[RoutePlan, Message]:
    """The message to publish. Headers too large for a frame would break the connection: that plan becomes a review."""
    item, decision = plan.item, plan.decision
    if isinstance(decision, Schedule) and isinstance(item, Request):
        properties = returning(item, decision, plan.round, plan.now_ms, plan.destination)
        if _surely_fits(properties, frame_max) or fits(properties, frame_max):
            return plan, Message(names.delay, item.origin.routing_key, properties, item.body, plan.token)
        plan = to_review(plan, "its headers leave no room for tarry's own in one frame")
    reason = plan.decision.reason if isinstance(plan.decision, Review) else ""
    properties = for_review(item, reason, plan.round, frame_max)
    return plan, Message(names.review, _review_key(item), properties, item.delivery.body, plan.token)


def _surely_fits(properties: Properties, frame_max: int) -> bool:
    """A quick check that nearly always succeeds and encodes nothing: only the headers can be over 256 bytes."""
    return len(properties.headers or b"") + ROOM_FOR_THE_REST <= frame_max


def _review_key(item: Request | Refused) -> str:
    """The review exchange ignores the routing key; it is kept as information for operators."""
    key = item.origin.routing_key if isinstance(item, Request) else item.delivery.routing_key
    return key if isinstance(key, str) else key.decode(errors="replace")[:80]


def record_of(plan: RoutePlan, message: Message | None, names: Names, ladder: Ladder) -> Record:
    """The audit record; body and properties are left out if the policy does not keep payloads. Without a message, the
    request itself is kept: nothing else remains of a skipped one.
    """
    item, decision = plan.item, plan.decision
    request = item if isinstance(item, Request) else None
    failure = request.failure if request else None
    scheduled = decision if isinstance(decision, Schedule) else None
    keep = decision.policy is None or decision.policy.keep_payload
    return Record(
        retry_id=item.retry_id,
        round=plan.round,
        state=_state_after(decision),
        queue=plan.queue,
        reason=storable(_reason(decision)),
        exchange=storable(item.origin.exchange) or "",
        routing_key=storable(item.origin.routing_key) or "",
        message_id=item.message_id,
        retry_count=scheduled.retry_count if scheduled else failure.retry_count if failure else 0,
        max_retries=scheduled.max_retries if scheduled else None,
        policy=decision.policy.name if decision.policy else None,
        error_class=decision.error_class,
        error_type=storable(failure.error_type) if failure else None,
        error_reason=storable(failure.error_reason) if failure else None,
        since_ms=failure.first_failed_ms if failure else None,
        due_ms=scheduled.due_ms if scheduled else None,
        delay_ms=scheduled.itinerary.delay_ms if scheduled else None,
        tier=first_queue(scheduled.itinerary, names, ladder) if scheduled else None,
        body=(message or item.delivery).body if keep else None,
        properties=(_stored(message, scheduled) if message else _encoded(item)) if keep else None,
        identity=request.identity if request else None,
        death=request.death if request else None,
        owner=storable(failure.owner) if failure else None,
        job_type=storable(failure.job_type) if failure else None,
        priority=storable(failure.priority) if failure else None,
        hint_ms=hint_of(failure, plan.now_ms) if failure else None,
        deferred_from_ms=scheduled.deferred_from_ms if scheduled else None,
        budget=storable(decision.budget),
    )


def _reason(decision: Decision) -> str | None:
    """Why it is not scheduled; or later than it would be without budgets, or although its error is given up."""
    if not isinstance(decision, Schedule):
        return decision.reason
    found = [] if decision.tried is None else [f"still tried, its error is {decision.tried}"]
    if decision.deferred_from_ms is not None:
        before = datetime.fromtimestamp(decision.deferred_from_ms / 1000, UTC)
        found.append(f"deferred from {before:%Y-%m-%d %H:%M:%S} UTC: over its budget of {decision.budget}")
    return "; ".join(found) or None


def _state_after(decision: Decision) -> State:
    if isinstance(decision, Schedule):
        return State.SCHEDULED
    return State.SKIPPED if isinstance(decision, Skip) else State.IN_REVIEW


def _encoded(item: Request | Refused) -> bytes:
    """The properties of the request as it was delivered."""
    return b"".join(item.delivery.properties.encode())


def _stored(message: Message, scheduled: Schedule | None) -> bytes:
    if scheduled is None or not scheduled.itinerary.leg_ms:
        return message.encoded_properties()
    return b"".join(without_legs(message.properties).encode())


def first_leg(plan: RoutePlan, message: Message, names: Names, ladder: Ladder) -> Leg | None:
    """The first leg of a plan whose delay takes several; None for any other."""
    decision = plan.decision
    if not isinstance(decision, Schedule) or not decision.itinerary.leg_ms:
        return None
    way, content = decision.itinerary, content_of(message.properties, message.body)
    key = LegKey(plan.item.retry_id, plan.round, decision.due_ms, content, 1)
    return Leg.of(key, way, first_queue(way, names, ladder), plan.now_ms)


def storable(text: str | None) -> str | None:
    """Escapes NUL, which Postgres text cannot contain."""
    return text.replace("\x00", "\\x00") if text and "\x00" in text else text

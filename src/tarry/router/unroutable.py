"""Handles unroutable messages: publishes them again, or sends them to review if that cannot help.

A message that is not due waits for the rest of its delay. If that takes several legs, and this was one of them, it is
published for its next leg: the broker has lost its keys, or the binding of the layover queue is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, cut, entry, pick
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract import headers as h
from tarry.contract.checks import check_origin, check_size
from tarry.contract.header_reader import HeaderReader, RefusalError
from tarry.contract.layover import Layover, content_of, next_leg, read_layover
from tarry.contract.message import Acceptance, Origin, Refused, Request, trace_field
from tarry.contract.retry_headers import RetryHeaders, not_an_id, priority_of, read_retry_headers
from tarry.contract.returned import fits, returning
from tarry.contract.review import refused
from tarry.contract.trace import trace_of
from tarry.core.decide import Failure, Review, Schedule
from tarry.core.ladder import Itinerary, first_queue, itinerary
from tarry.core.names import Destination
from tarry.core.policy import ErrorClass
from tarry.errors import DelayTooLongError
from tarry.router.batches import BatchResult, handle_batch
from tarry.router.pipeline import CurrentPipeline
from tarry.router.plan import RoutePlan, message_of, record_of
from tarry.store.rows import Leg, LegKey

_READ = frozenset(
    name.encode()
    for name in (
        *(h.ID, h.ROUND, h.DUE, h.QUEUE, h.COUNT, h.EXCHANGE, h.KEY),
        *(h.SINCE, h.FORM, h.MOST, h.VIA, h.TIMES_UNROUTABLE, h.OWN_PRIORITY, h.PRIORITY, h.JOB_TYPE, h.OWNER),
        *(h.LAYOVER, h.TRACEPARENT, h.TRACESTATE),
    )
)


@dataclass(frozen=True, slots=True)
class UnroutableMessage:
    """An unroutable message, read from tarry's own headers on it."""

    request: Request
    due_ms: int
    count: int
    most: int
    times: int
    """How often it was unroutable before."""
    through_exchange: bool
    """Whether it was to return through its origin exchange."""
    content: str
    """A hash of the user's message."""
    layover: Layover | None = None
    """The leg that it was on, if its delay takes several and that was not the last."""

    @property
    def leg_key(self) -> LegKey:
        leg = 0 if self.layover is None else self.layover.leg
        return LegKey(self.request.retry_id, self.request.failure.round, self.due_ms, self.content, leg)

    def destination(self, *, due: bool) -> Destination:
        """A due message was not routable at its first destination, so it goes to the queue in which it failed."""
        origin = self.request.origin
        if self.through_exchange and not due:
            return Destination("exchange", origin.exchange)
        return Destination("queue", origin.queue)


def read_unroutable(delivery: Delivery, accept: Acceptance) -> UnroutableMessage:
    """Reads an unroutable message. Any publisher can forge one, so it is trusted no more than a request."""
    check_size(delivery, accept)
    headers = HeaderReader(pick(delivery.properties.headers or b"", _READ))
    own = read_retry_headers(headers.fields)
    own.check(h.ID, h.ROUND, h.DUE, h.QUEUE, h.COUNT)
    retry_id, round_, due, queue, count = own.id_text, own.round, own.due_ms, own.queue, own.retry_count or 0
    if retry_id is None or round_ is None or due is None or not queue:
        raise RefusalError("it has none of tarry's headers")
    if own.retry_id != retry_id:  # tarry writes ids in their canonical form only
        raise not_an_id(retry_id)
    own.check(h.EXCHANGE, h.KEY)
    origin = Origin(queue, own.exchange or "", queue if own.routing_key is None else own.routing_key)
    check_origin(origin, accept)
    own.check(h.SINCE, h.MOST, h.TIMES_UNROUTABLE, h.VIA)
    request = Request(
        delivery=delivery,
        form="headers",
        retry_id=retry_id,
        deduplicable=True,
        knows_round=True,
        message_id=None,
        origin=origin,
        failure=_failure(queue, count, round_, own, headers),
        body=delivery.body,
        priority=priority_of(own, delivery.properties.priority),
        speaks_contract=own.contract,
        trace=trace_of(headers.fields),
    )
    most, times = own.max_retries or 0, own.times_unroutable or 0
    through_exchange, layover = own.via == "exchange", read_layover(headers.fields)
    content = content_of(delivery.properties, delivery.body)
    found = UnroutableMessage(request, due, count, most, times, through_exchange, content, layover)
    if layover is not None and layover.keys[-1] != found.destination(due=False).key:
        raise RefusalError(f"its header `{h.LAYOVER}` names another destination than its other headers")
    return found


def _failure(queue: str, count: int, round_: int, own: RetryHeaders, headers: HeaderReader) -> Failure:
    """With what policies match on, as for a request: the message returns by the policy that it was scheduled by."""
    failure = Failure(queue, count, round_, own.since_ms)
    if not own.contract:
        return failure
    return failure._replace(priority=headers.word(h.PRIORITY), job_type=headers.word(h.JOB_TYPE), owner=headers.owner())


log = structlog.get_logger()

BATCH = 200
MOST_TIMES = 20
"""A message that was unroutable this often goes to review: publishing it again does not help."""

LONGEST_REST = 5.0


class UnroutableLedger(Protocol):
    """The audit as the handler of unroutable messages needs it."""

    async def legs_sent_on(self, legs: Sequence[LegKey]) -> set[LegKey]: ...
    async def record_legs(self, legs: Sequence[Leg]) -> None: ...
    async def note_unroutable(self, found: Sequence[tuple[str, int]]) -> None: ...


class Planned(NamedTuple):
    """A message to publish."""

    plan: RoutePlan
    message: Message
    leg: Leg | None = None
    """The leg to record, if its delay takes several."""


@dataclass(slots=True)
class UnroutableHandler:
    """The handler of the unroutable queue. It shares the pipeline's rules, ledger and publisher."""

    pipeline: CurrentPipeline
    ledger: UnroutableLedger
    bind: Callable[[Destination], Awaitable[str | None]]
    count: Callable[[str, Sequence[str]], None]
    """Called with the outcome and the queues."""

    async def __call__(self, batch: Sequence[Delivery]) -> BatchResult:
        return BatchResult.of(await handle_batch(batch, self._publish_again, self.pipeline.current.give_up))

    async def _publish_again(self, batch: Sequence[Delivery]) -> BatchResult:
        messages = [self._read(delivery) for delivery in batch]
        await asyncio.sleep(_rest(messages))
        messages, copies = await self._without_copies(messages)
        moved = await self._move([await self._plan(message) for message in messages])
        return BatchResult([*copies, *moved.acked], moved.requeued)

    async def _without_copies(
        self, messages: Sequence[UnroutableMessage | Refused]
    ) -> tuple[list[UnroutableMessage | Refused], list[int]]:
        """The messages, and the delivery tags of those among them whose next leg the broker has already."""
        legs = [one.leg_key for one in messages if isinstance(one, UnroutableMessage) and one.layover is not None]
        known = await self.ledger.legs_sent_on(legs) if legs else set()
        found: list[UnroutableMessage | Refused] = []
        copies: list[int] = []
        for one in messages:
            if isinstance(one, UnroutableMessage) and one.layover is not None and one.leg_key in known:
                about = {"retry_id": one.leg_key.retry_id, "round": one.leg_key.round, "leg": one.leg_key.leg}
                log.info("unroutable, duplicate dropped", **about, **trace_field(one.request))
                copies.append(one.request.delivery.tag)
            else:
                found.append(one)
        return found, copies

    def _read(self, delivery: Delivery) -> UnroutableMessage | Refused:
        pipeline = self.pipeline.current
        try:
            return read_unroutable(delivery, pipeline.accept)
        except (RefusalError, BadTableError) as error:
            return refused(delivery, pipeline.new_id(), f"unroutable, and not readable: {error}", pipeline.accept)

    async def _plan(self, found: UnroutableMessage | Refused) -> Planned:
        pipeline = self.pipeline.current
        now = pipeline.now_ms()
        if isinstance(found, Refused):
            return self._review(RoutePlan(found, 0, Review(None, None, found.reason), now))
        request, round_ = found.request, found.request.failure.round
        policy = pipeline.rules.policy_for(request.failure) or pipeline.rules.policies[-1]
        left = max(0, found.due_ms - now)
        try:
            way = itinerary(pipeline.rules.ladder, left, pipeline.rules.tiers)
        except DelayTooLongError as too_long:  # forged
            return self._review(RoutePlan(request, round_, Review(policy, None, f"unroutable: {too_long}"), now))
        decision = Schedule(policy, ErrorClass.RETRYABLE, found.count, found.most, way, found.due_ms)
        plan = RoutePlan(request, round_, decision, now)
        destination = found.destination(due=not left)
        reason = await self.bind(destination) if destination.kind == "queue" and not way.leg_ms else None
        # Without the layover queue each leg ends here once, which is no reason to give up.
        if found.times - found.leg_key.leg >= MOST_TIMES:
            reason = f"it was unroutable {found.times} times"
        if reason is None:
            properties = self._properties(found, plan, way, destination)
            times = entry(h.TIMES_UNROUTABLE, found.times + 1)
            marked = replace(properties, headers=(properties.headers or b"") + times)
            if fits(marked, pipeline.frame_max()):
                key = request.origin.routing_key
                message = Message(pipeline.names.delay, key, marked, request.body, plan.token)
                return Planned(plan, message, self._leg(found, way, now))
            reason = "its headers leave no room for tarry's own in one frame"
        return self._review(plan._replace(decision=Review(policy, None, f"unroutable: {reason}")))

    def _review(self, plan: RoutePlan) -> Planned:
        pipeline = self.pipeline.current
        return Planned(*message_of(plan, pipeline.names, pipeline.frame_max()))

    def _properties(
        self, found: UnroutableMessage, plan: RoutePlan, way: Itinerary, destination: Destination
    ) -> Properties:
        request = found.request
        if found.layover is not None:
            times = h.TIMES_UNROUTABLE.encode()
            before = replace(
                request.delivery.properties, headers=cut(request.delivery.properties.headers or b"", times.__eq__)
            )
            return next_leg(before, request.retry_id, plan.round, found.layover, way)
        if not isinstance(plan.decision, Schedule):
            raise TypeError("a review has no itinerary")
        return returning(request, plan.decision, plan.round, plan.now_ms, destination)

    def _leg(self, found: UnroutableMessage, way: Itinerary, now_ms: int) -> Leg | None:
        """The leg to record, if its delay takes several."""
        if found.layover is None and not way.leg_ms:
            return None
        pipeline = self.pipeline.current
        return Leg.of(found.leg_key.next, way, first_queue(way, pipeline.names, pipeline.rules.ladder), now_ms)

    async def _move(self, planned: Sequence[Planned]) -> BatchResult:
        """Writes to the audit first: the tap may see a message pass again as soon as it is published."""
        pipeline = self.pipeline.current
        rounds = [(plan.item.retry_id, plan.round) for plan, _, _ in planned if isinstance(plan.item, Request)]
        await self.ledger.note_unroutable(rounds)
        outcomes = await pipeline.publish([one.message for one in planned])
        moved = [one for one, outcome in zip(planned, outcomes, strict=True) if outcome is PublishOutcome.CONFIRMED]
        if legs := [one.leg for one in moved if one.leg is not None]:
            await self.ledger.record_legs(legs)
        reviewed = [(one.plan, one.message) for one in moved if isinstance(one.plan.decision, Review)]
        if reviewed:
            names, ladder = pipeline.names, pipeline.rules.ladder
            await pipeline.ledger.record([record_of(plan, sent, names, ladder) for plan, sent in reviewed])
        self._tell([one.plan for one in moved])
        acked = {one.plan.item.delivery.tag for one in moved}
        tags = [one.plan.item.delivery.tag for one in planned]
        return BatchResult([tag for tag in tags if tag in acked], [tag for tag in tags if tag not in acked])

    def _tell(self, moved: Sequence[RoutePlan]) -> None:
        for plan in moved:
            who = {"retry_id": plan.item.retry_id, "round": plan.round, "queue": plan.queue, **trace_field(plan.item)}
            if isinstance(plan.decision, Review):
                log.warning("unroutable, sent to review", **who, reason=plan.decision.reason)
            elif isinstance(plan.decision, Schedule):
                log.info("unroutable, published again", **who, delay_ms=plan.decision.itinerary.delay_ms)
        self.count("review", [plan.queue for plan in moved if isinstance(plan.decision, Review)])
        self.count("sent_on", [plan.queue for plan in moved if isinstance(plan.decision, Schedule)])


def _rest(messages: Sequence[UnroutableMessage | Refused]) -> float:
    """Seconds to wait: none at first, longer if a message is unroutable repeatedly, so that it cannot loop quickly."""
    times = max((found.times for found in messages if isinstance(found, UnroutableMessage)), default=0)
    return min(times * 0.5, LONGEST_REST)

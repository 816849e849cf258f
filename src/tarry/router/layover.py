"""Handles messages between two legs of a delay that is longer than the ladder holds: sends them for the rest.

    read → drop copies → publish the next leg → record it → acknowledge

A message whose next leg is recorded is a copy: this router, or another, was killed after the publish. Everything else
is sent: a retry that was cancelled, or retried now, is diverted at the cancelled gate, which every leg passes with its
own key. A message that cannot be read goes to review.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, pick
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract import headers as h
from tarry.contract.header_reader import RefusalError
from tarry.contract.layover import Layover, next_leg
from tarry.contract.message import Refused, Request, trace_field
from tarry.contract.retry_headers import read_retry_headers
from tarry.contract.returned import fits
from tarry.contract.review import refused
from tarry.core.decide import Review
from tarry.core.ladder import first_queue, itinerary
from tarry.errors import DelayTooLongError, GivenUpError
from tarry.router.batches import BatchResult, handle_batch
from tarry.router.pipeline import CurrentPipeline
from tarry.router.plan import RoutePlan, message_of, record_of
from tarry.router.unroutable import UnroutableMessage, read_unroutable
from tarry.store.rows import Leg, LegKey

log = structlog.get_logger()

BATCH = 200

_NAMES_RETRY = frozenset({h.ID.encode(), h.ROUND.encode()})


class LayoverLedger(Protocol):
    """The audit as this handler needs it."""

    async def legs_sent_on(self, legs: Sequence[LegKey]) -> set[LegKey]: ...
    async def record_legs(self, legs: Sequence[Leg]) -> None: ...


class Sent(NamedTuple):
    """A message to publish, and what the audit records of it: its next leg, or a review."""

    item: Request | Refused
    message: Message
    record: Leg | RoutePlan


@dataclass(slots=True)
class LayoverHandler:
    """The handler of the layover queue. It shares the pipeline's rules, ledger and publisher."""

    pipeline: CurrentPipeline
    ledger: LayoverLedger
    count: Callable[[str, int], None]
    """Called with an outcome and the number of messages."""

    async def __call__(self, batch: Sequence[Delivery], given_up: Callable[[], bool] = lambda: False) -> BatchResult:
        """`given_up` says whether the broker may have given the deliveries to another consumer by now."""

        async def send_on(part: Sequence[Delivery]) -> BatchResult:
            return await self._send_on(part, given_up)

        return BatchResult.of(await handle_batch(batch, send_on, self.pipeline.current.give_up))

    async def _send_on(self, batch: Sequence[Delivery], given_up: Callable[[], bool]) -> BatchResult:
        read = [self._read(delivery) for delivery in batch]
        # One message for each leg: a second one in the batch is tried again, and is found to be a copy then.
        found = {one.leg_key: one for one in reversed(read) if isinstance(one, UnroutableMessage)}
        copies = await self.ledger.legs_sent_on(list(found)) if found else set()
        if given_up():
            raise GivenUpError  # another router may send them at this moment
        sent_on = [one for key, one in found.items() if key not in copies]
        planned = [self._plan(one, one.layover) for one in sent_on if one.layover is not None]
        planned += [one for one in read if isinstance(one, Sent)]
        moved = await self._publish(planned)
        await self._record(moved)
        self._tell(moved, [found[key] for key in copies])
        done = {found[key].request.delivery.tag for key in copies} | {one.item.delivery.tag for one in moved}
        tags = [delivery.tag for delivery in batch]
        return BatchResult([tag for tag in tags if tag in done], [tag for tag in tags if tag not in done])

    def _read(self, delivery: Delivery) -> UnroutableMessage | Sent:
        pipeline = self.pipeline.current
        try:
            found = read_unroutable(delivery, pipeline.accept)
            if found.layover is not None:
                return found
            problem = "it is not on a leg"
        except (RefusalError, BadTableError) as error:
            problem = str(error)
        reason = f"in {pipeline.names.layover}, and not readable: {problem}"
        retry_id, round_ = _retry_of(delivery) or (pipeline.new_id(), 0)
        return self._review(refused(delivery, retry_id, reason, pipeline.accept), reason, round_)

    def _plan(self, found: UnroutableMessage, layover: Layover) -> Sent:
        """The next leg, for what is left until the due time; nothing is left if it is overdue. Only the ladder is used:
        it has every delay, and no tier can refuse the message.
        """
        pipeline, request, round_ = self.pipeline.current, found.request, found.request.failure.round
        names, ladder, now = pipeline.names, pipeline.rules.ladder, pipeline.now_ms()
        try:
            way = itinerary(ladder, max(0, found.due_ms - now), ())
        except DelayTooLongError as too_long:  # forged
            return self._review(request, str(too_long), round_)
        properties = next_leg(request.delivery.properties, request.retry_id, round_, layover, way)
        if not fits(properties, pipeline.frame_max()):
            return self._review(request, "its headers leave no room for tarry's own in one frame", round_)
        token = f"{request.retry_id}:{round_}"
        message = Message(names.delay, request.origin.routing_key, properties, request.body, token)
        return Sent(request, message, Leg.of(found.leg_key.next, way, first_queue(way, names, ladder), now))

    def _review(self, item: Request | Refused, reason: str, round_: int = 0) -> Sent:
        pipeline = self.pipeline.current
        plan = RoutePlan(item, round_, Review(None, None, reason), pipeline.now_ms())
        plan, message = message_of(plan, pipeline.names, pipeline.frame_max())
        return Sent(item, message, plan)

    async def _publish(self, planned: Sequence[Sent]) -> list[Sent]:
        outcomes = await self.pipeline.current.publish([one.message for one in planned]) if planned else []
        answered = zip(planned, outcomes, strict=True)
        return [one for one, outcome in answered if outcome is PublishOutcome.CONFIRMED]

    async def _record(self, moved: Sequence[Sent]) -> None:
        pipeline = self.pipeline.current
        if legs := [one.record for one in moved if isinstance(one.record, Leg)]:
            await self.ledger.record_legs(legs)
        if reviewed := [(one.record, one.message) for one in moved if isinstance(one.record, RoutePlan)]:
            names, ladder = pipeline.names, pipeline.rules.ladder
            await pipeline.ledger.record([record_of(plan, sent, names, ladder) for plan, sent in reviewed])

    def _tell(self, moved: Sequence[Sent], copies: Sequence[UnroutableMessage]) -> None:
        legs = 0
        for item, _, record in moved:
            who = {"retry_id": item.retry_id, "round": record.round, **trace_field(item)}
            if isinstance(record, Leg):
                about = {"leg": record.leg, "delay_ms": record.delay_ms, "due_ms": record.due_ms, "tier": record.tier}
                log.info("layover, sent for the rest", **who, **about)
                legs += 1
            else:
                reason = record.decision.reason if isinstance(record.decision, Review) else ""
                log.warning("layover, sent to review", **who, reason=reason)
        for one in copies:
            key, trace = one.leg_key, trace_field(one.request)
            log.info("layover, duplicate dropped", retry_id=key.retry_id, round=key.round, leg=key.leg, **trace)
        self.count("sent", legs)
        self.count("review", len(moved) - legs)
        self.count("duplicate", len(copies))


def _retry_of(delivery: Delivery) -> tuple[str, int] | None:
    """The retry and round that tarry's headers name, however wrong the rest is: for a rule of the topology that has
    changed since, the message is in review, and not missing as well.
    """
    try:
        own = read_retry_headers(pick(delivery.properties.headers or b"", _NAMES_RETRY))
    except BadTableError:
        return None
    return None if own.retry_id is None or not own.round else (own.retry_id, own.round)

"""Strays: what came to `retry.unroutable`, because its destination was not bound or a tier on its way was missing.

Its queue may have been deleted and declared anew, which loses the binding: it is bound again and the message sent on,
to wait for what is left of its delay. Where there is no queue to return to, a person decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog
from pika.exceptions import AMQPError

from tarry.broker.publisher import Message, Outcome
from tarry.contract.fields import BadTableError, entry
from tarry.contract.reading import RefusalError
from tarry.contract.refusal import refused
from tarry.contract.request import Delivery, Refused, Request
from tarry.contract.returning import fits, returning
from tarry.core.decide import Review, Schedule
from tarry.core.ladder import itinerary
from tarry.core.names import Destination
from tarry.core.policy import ErrorClass
from tarry.errors import DelayTooLongError, TarryError
from tarry.router.batches import Settled
from tarry.router.contain import contained
from tarry.router.flow import Flow
from tarry.router.plans import Plan, message_of, record_of
from tarry.router.stray import TIMES, Stray, read_stray

log = structlog.get_logger()

BATCH = 200
MOST_TIMES = 20
"""A message that strayed so often is for a person: sending it on does not help."""

LONGEST_REST = 5.0


class StrayLedger(Protocol):
    """The audit as strays need it."""

    async def strayed(self, found: Sequence[tuple[str, int]]) -> None: ...


@dataclass(slots=True)
class Strays:
    """The handler of the unroutable queue. It shares the flow's rules, ledger and outlet."""

    flow: Callable[[], Flow]
    ledger: StrayLedger
    bind: Callable[[Destination], Awaitable[str | None]]
    count: Callable[[str, Sequence[str]], None]
    """Told the outcome and the queues."""

    async def __call__(self, batch: Sequence[Delivery]) -> Settled:
        try:
            return await contained(batch, self._send_on, self.flow().give_up)
        except (TarryError, AMQPError, OSError) as error:
            log.warning("strays wait", size=len(batch), error=str(error))
            return Settled(requeued=[delivery.tag for delivery in batch])

    async def _send_on(self, batch: Sequence[Delivery]) -> Settled:
        strays = [self._read(delivery) for delivery in batch]
        await asyncio.sleep(_rest(strays))
        return await self._move([await self._plan(stray) for stray in strays])

    def _read(self, delivery: Delivery) -> Stray | Refused:
        try:
            return read_stray(delivery, self.flow().accept)
        except (RefusalError, BadTableError) as error:
            flow = self.flow()
            return refused(delivery, flow.new_id(), f"unroutable, and not readable: {error}", flow.accept)

    async def _plan(self, stray: Stray | Refused) -> tuple[Plan, Message]:
        flow = self.flow()
        now = flow.now_ms()
        if isinstance(stray, Refused):
            return message_of(Plan(stray, 0, Review(None, None, stray.reason), now), flow.names, flow.frame_max())
        request, round_ = stray.request, stray.request.failure.round
        policy = flow.rules.policy_for(request.failure) or flow.rules.policies[-1]
        left = max(0, stray.due_ms - now)
        try:
            way = itinerary(flow.rules.ladder, left, flow.rules.tiers)
        except DelayTooLongError as too_long:  # of a longer ladder than ours, or forged
            review = Plan(request, round_, Review(policy, None, f"unroutable: {too_long}"), now)
            return message_of(review, flow.names, flow.frame_max())
        decision = Schedule(policy, ErrorClass.RETRYABLE, stray.count, stray.most, way, stray.due_ms)
        plan = Plan(request, round_, decision, now)
        destination = stray.destination(due=not left)
        reason = await self.bind(destination) if destination.kind == "queue" else None
        if stray.times >= MOST_TIMES:
            reason = f"it was unroutable {stray.times} times"
        if reason is None:
            properties = returning(request, decision, round_, now, destination)
            marked = replace(properties, headers=(properties.headers or b"") + entry(TIMES, stray.times + 1))
            if fits(marked, flow.frame_max()):
                key = request.origin.routing_key
                return plan, Message(flow.names.delay, key, marked, request.body, plan.token)
            reason = "its headers leave no room for tarry's own in one frame"
        review = plan._replace(decision=Review(policy, None, f"unroutable: {reason}"))
        return message_of(review, flow.names, flow.frame_max())

    async def _move(self, planned: Sequence[tuple[Plan, Message]]) -> Settled:
        """The books first: the tap may see a message pass again the moment it is sent on."""
        flow = self.flow()
        await self.ledger.strayed([(p.item.retry_id, p.round) for p, _ in planned if isinstance(p.item, Request)])
        outcomes = await flow.publish([message for _, message in planned])
        moved = [one for one, outcome in zip(planned, outcomes, strict=True) if outcome is Outcome.CONFIRMED]
        reviewed = [one for one in moved if isinstance(one[0].decision, Review)]
        if reviewed:
            await flow.ledger.record([record_of(plan, sent, flow.names, flow.rules.ladder) for plan, sent in reviewed])
        self._tell([plan for plan, _ in moved])
        acked = {plan.item.delivery.tag for plan, _ in moved}
        tags = [plan.item.delivery.tag for plan, _ in planned]
        return Settled([tag for tag in tags if tag in acked], [tag for tag in tags if tag not in acked])

    def _tell(self, moved: Sequence[Plan]) -> None:
        for plan in moved:
            who = {"retry_id": plan.item.retry_id, "round": plan.round, "queue": plan.queue}
            if isinstance(plan.decision, Review):
                log.warning("unroutable, to review", **who, reason=plan.decision.reason)
            else:
                log.info("unroutable, sent on", **who, delay_ms=plan.decision.itinerary.delay_ms)
        self.count("review", [plan.queue for plan in moved if isinstance(plan.decision, Review)])
        self.count("sent_on", [plan.queue for plan in moved if isinstance(plan.decision, Schedule)])


def _rest(strays: Sequence[Stray | Refused]) -> float:
    """None at first; one that strays again and again slows its batch down, so that it cannot go round in a hurry."""
    times = max((stray.times for stray in strays if isinstance(stray, Stray)), default=0)
    return min(times * 0.5, LONGEST_REST)

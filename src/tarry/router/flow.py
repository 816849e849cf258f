"""The whole product on one screen: what happens to a batch of retry requests.

    understand → claim → decide → publish → record → settle

A crash anywhere before the last step repeats the request, so every step can be repeated: the claim tells a new round
from a duplicate, and a request is acknowledged only when the broker has confirmed its successor.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from tarry.audit.records import Claim, Claimed, Record
from tarry.broker.publisher import Message, Outcome
from tarry.contract.identity import same_body
from tarry.contract.refusal import refused
from tarry.contract.request import Acceptance, Delivery, Probe, Refused, Request, parse
from tarry.core.decide import Review, Rulebook, Schedule, decide
from tarry.core.names import Destination, Names
from tarry.errors import GivenUpError
from tarry.router.plans import (
    Plan,
    as_new,
    claim_of,
    corrected,
    detour,
    identified,
    is_new,
    message_of,
    record_of,
    to_review,
)

log = structlog.get_logger()


class Ledger(Protocol):
    """The audit as the flow needs it. It never fails: without Postgres it grants from memory and spools."""

    async def claim(self, claims: Sequence[Claim]) -> Claimed: ...
    async def release(self, claimed: Sequence[tuple[str, int]]) -> None: ...
    async def record(self, records: Sequence[Record]) -> None: ...
    async def duplicates(self, found: Sequence[tuple[str, int]]) -> None: ...


NOTHING = Claimed({}, {})

FRAME_MAX = 131_072
"""What every broker allows unless it is told otherwise."""

Publish = Callable[[Sequence[Message]], Awaitable[list[Outcome]]]
"""Publishes all, and tells the broker's word on each."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a batch."""

    moved: Sequence[Plan]
    """Confirmed by the broker: in a tier or in review."""
    stuck: Sequence[tuple[Plan, Outcome]]
    """Not taken by the broker: their requests stay and are tried again."""
    detours: Sequence[tuple[Plan, Outcome]]
    """Not taken by their own tier, and moved by the ladder instead."""
    duplicates: Sequence[Request]
    acked: Sequence[int]
    requeued: Sequence[int]
    decided_s: float
    """Seconds until the last decision was made, the claim included."""
    confirmed_s: float
    """Seconds from then until the broker's last word."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The steps, and what they need from outside."""

    names: Names
    rules: Rulebook
    accept: Acceptance
    ledger: Ledger
    publish: Publish
    attach: Callable[[Destination], Awaitable[str | None]]
    """Makes sure that a destination can be reached; answers with the reason if it cannot."""
    now_ms: Callable[[], int]
    draw: Callable[[], float]
    new_id: Callable[[], str]
    frame_max: Callable[[], int] = lambda: FRAME_MAX
    """The most that one frame may hold on the publishing connection of the moment."""
    in_flight: set[str] = field(default_factory=set)
    """Retries and messages that this router is moving right now; a second request for one of them waits its turn."""

    async def handle(self, deliveries: Sequence[Delivery], given_up: Callable[[], bool] = lambda: False) -> Result:
        """One batch, from deliveries to what is to be acknowledged.

        `given_up` tells whether the broker may have given the deliveries to somebody else by now.
        """
        started = time.perf_counter()
        items = [self._understand(delivery) for delivery in deliveries]
        requests, later = self._take_turns([item for item in items if isinstance(item, Request)])
        try:
            ours, duplicates, undecided = await self._claim(requests, given_up)
            plans = [await self._decide(request, round_) for request, round_ in ours]
            plans += [self._refuse(item) for item in items if isinstance(item, Refused)]
            decided = time.perf_counter()
            moved, stuck, detours = await self._publish(plans)
            confirmed = time.perf_counter()
            await self._record(moved, duplicates)
        finally:
            self.in_flight.difference_update(key for request in requests for key in _turns(request))
        finished = [
            *(plan.item.delivery.tag for plan, _ in moved),
            *(request.delivery.tag for request in duplicates),
            *(item.delivery.tag for item in items if isinstance(item, Probe)),
        ]
        waiting = [*(plan.item.delivery.tag for plan, _ in stuck), *(one.delivery.tag for one in (*later, *undecided))]
        return Result(
            [plan for plan, _ in moved],
            stuck,
            detours,
            duplicates,
            finished,
            waiting,
            decided - started,
            confirmed - decided,
        )

    async def give_up(self, delivery: Delivery, reason: str, *, is_request: bool = True) -> Result:
        """A delivery that nothing else can be done with goes to a person, whole."""
        started = time.perf_counter()
        moved, stuck, _ = await self._publish(
            [self._refuse(refused(delivery, self.new_id(), reason, self.accept if is_request else None))]
        )
        await self._record(moved, [])
        plans = [plan for plan, _ in moved]
        tags = [delivery.tag]
        return Result(
            plans, stuck, [], [], tags if plans else [], [] if plans else tags, 0.0, time.perf_counter() - started
        )

    def _understand(self, delivery: Delivery) -> Request | Refused | Probe:
        """Whatever a request does to us, it must not take its batch with it."""
        try:
            item = parse(delivery, self.accept, self.new_id)
            if not isinstance(item, Request):
                return item
            return identified(item, self.rules.policy_for(item.failure), self.new_id)
        except Exception:
            log.exception("a request could not be read")
            why = "it could not be read: the service's log has the error"
            return refused(delivery, self.new_id(), why, self.accept)

    def _take_turns(self, requests: Sequence[Request]) -> tuple[list[Request], list[Request]]:
        """One request per retry and message at a time: only the broker's confirm of the first tells what the second
        is.
        """
        now: list[Request] = []
        later: list[Request] = []
        for request in requests:
            turns = _turns(request)
            if self.in_flight.isdisjoint(turns):
                self.in_flight.update(turns)
                now.append(request)
            else:
                later.append(request)
        return now, later

    async def _claim(
        self, requests: Sequence[Request], given_up: Callable[[], bool]
    ) -> tuple[list[tuple[Request, int]], list[Request], list[Request]]:
        """Ours, with their round and the audit's count; the duplicates; and what cannot be told yet."""
        known = [request for request in requests if not is_new(request)]
        answer = await self.ledger.claim([claim_of(request) for request in known]) if known else NOTHING
        if answer.granted and given_up():
            # Frozen or cut off before the claim: another router may be through with these, and nobody would ever
            # come back for the round that they would begin now. If they are not done, they are delivered again.
            await self.ledger.release([(one.retry_id, one.round) for one in answer.granted.values()])
            raise GivenUpError
        ours: list[tuple[Request, int]] = []
        duplicates: list[Request] = []
        undecided: list[Request] = []
        for request in requests:
            granted = as_new(request) if is_new(request) else answer.granted.get(request.retry_id)
            if granted is not None:
                ours.append((corrected(request, granted), granted.round))
            elif (original := answer.duplicate_of.get(request.retry_id)) is not None:
                duplicates.append(request._replace(retry_id=original))
            else:
                undecided.append(request)
        return ours, duplicates, undecided

    async def _decide(self, request: Request, round_: int) -> Plan:
        now = self.now_ms()
        plan = Plan(request, round_, decide(request.failure, self.rules, now, self.draw()), now)
        unreachable = await self.attach(plan.destination) if isinstance(plan.decision, Schedule) else None
        return plan if unreachable is None else to_review(plan, unreachable)

    def _refuse(self, item: Refused) -> Plan:
        return Plan(item, 0, Review(None, None, item.reason), self.now_ms())

    async def _publish(
        self, plans: Sequence[Plan]
    ) -> tuple[list[tuple[Plan, Message]], list[tuple[Plan, Outcome]], list[tuple[Plan, Outcome]]]:
        """A tier that is missing or full must not hold up its messages, nor those behind them: the ladder takes any
        delay, a hop or two dearer.
        """
        moved, stuck = await self._send(plans)
        ways = {plan.token: way for plan, why in stuck if (way := detour(plan, why, self.rules)) is not None}
        if not ways:
            return moved, stuck, []
        around, _ = await self._send(list(ways.values()))
        done = {plan.token for plan, _ in around}
        left = [one for one in stuck if one[0].token not in done]
        return moved + around, left, [one for one in stuck if one[0].token in done]

    async def _send(self, plans: Sequence[Plan]) -> tuple[list[tuple[Plan, Message]], list[tuple[Plan, Outcome]]]:
        planned = [message_of(plan, self.names, self.frame_max()) for plan in plans]
        outcomes = await self.publish([message for _, message in planned]) if planned else []
        answered = list(zip(planned, outcomes, strict=True))
        moved = [one for one, outcome in answered if outcome is Outcome.CONFIRMED]
        return moved, [(plan, outcome) for (plan, _), outcome in answered if outcome is not Outcome.CONFIRMED]

    async def _record(self, moved: Sequence[tuple[Plan, Message]], duplicates: Sequence[Request]) -> None:
        if moved:
            await self.ledger.record([record_of(plan, sent, self.names, self.rules.ladder) for plan, sent in moved])
        if duplicates:
            await self.ledger.duplicates([(request.retry_id, request.failure.round + 1) for request in duplicates])


def _turns(request: Request) -> tuple[str, ...]:
    """What must not be moved twice at the same time. A message is recognised by its body too, so two that agree in
    queue, id and body may be taken for the same retry.
    """
    if request.identity is None or request.message_id is None or not request.deduplicable:
        return (request.retry_id,)
    return (request.retry_id, same_body(request.identity))

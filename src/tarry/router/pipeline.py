"""The batch pipeline: everything that happens to a batch of retry requests, on one screen.

    understand → ask eligibility → claim → decide → charge budgets → publish → record → settle

A crash anywhere before the last step repeats the request, so every step can be repeated: the claim distinguishes a new
round from a duplicate, and a request is acknowledged only after the broker has confirmed its successor. A skipped
request has no successor: it is acknowledged after its record is durable.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract.identity import same_body
from tarry.contract.message import Acceptance, Probe, Refused, Request
from tarry.contract.request import parse
from tarry.contract.review import refused
from tarry.core.adaptive import NOTHING_GIVEN_UP, ErrorsGivenUp, draw_of
from tarry.core.budgets import NO_CAPS, Caps
from tarry.core.decide import Review, Rulebook, Schedule, Skip, by_history, decide
from tarry.core.names import Destination, Names
from tarry.errors import GivenUpError
from tarry.router.batches import BatchResult, handle_batch
from tarry.router.plan import (
    RoutePlan,
    as_new,
    claim_of,
    corrected,
    detour,
    first_leg,
    identified,
    is_new,
    message_of,
    record_of,
    to_review,
    to_skip,
)
from tarry.store.rows import Claim, Claimed, Leg, Record

log = structlog.get_logger()


class Ledger(Protocol):
    """The audit as the pipeline needs it. It never fails: without Postgres it grants from memory and spools."""

    async def claim(self, claims: Sequence[Claim]) -> Claimed: ...
    async def unclaim(self, claimed: Sequence[tuple[str, int]]) -> None: ...
    async def record(self, records: Sequence[Record]) -> None: ...
    async def record_legs(self, legs: Sequence[Leg]) -> None: ...
    async def duplicates(self, found: Sequence[tuple[str, int]]) -> None: ...


NOTHING = Claimed({}, {})

FRAME_MAX = 131_072
"""The frame size that every broker allows unless configured otherwise."""

Publish = Callable[[Sequence[Message]], Awaitable[list[PublishOutcome]]]
"""Publishes all messages and returns the outcome of each."""


AskEligibility = Callable[[Sequence[Request], Rulebook], Awaitable[Mapping[int, str]]]
"""Why messages are not wanted any more, by delivery tag. It never fails."""


async def nothing_asked(_requests: Sequence[Request], _rules: Rulebook) -> Mapping[int, str]:
    return {}


ChargeBudgets = Callable[[Sequence[RoutePlan], Rulebook], Awaitable[list[RoutePlan]]]
"""The plans, changed where a budget has no room. It never fails."""


async def nothing_charged(plans: Sequence[RoutePlan], _rules: Rulebook) -> list[RoutePlan]:
    return list(plans)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a batch."""

    moved: Sequence[RoutePlan]
    """Confirmed by the broker, in a tier or in review; or skipped, and recorded."""
    stuck: Sequence[tuple[RoutePlan, PublishOutcome]]
    """Not accepted by the broker: their requests are requeued and tried again."""
    detours: Sequence[tuple[RoutePlan, PublishOutcome]]
    """Not accepted by their own tier, and published to the ladder instead."""
    duplicates: Sequence[Request]
    acked: Sequence[int]
    requeued: Sequence[int]
    decided_s: float
    """Seconds until the last decision was made, including eligibility, the claim and the budgets."""
    confirmed_s: float
    """Seconds from then until the last publish outcome."""
    began_ms: int = 0
    """When the batch was received."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps of the pipeline, and their dependencies."""

    names: Names
    rules: Rulebook
    accept: Acceptance
    ledger: Ledger
    publish: Publish
    ensure_bound: Callable[[Destination], Awaitable[str | None]]
    """Makes sure that a destination can be reached; returns the reason if it cannot."""
    now_ms: Callable[[], int]
    draw: Callable[[], float]
    new_id: Callable[[], str]
    frame_max: Callable[[], int] = lambda: FRAME_MAX
    """The largest frame that the current publishing connection allows."""
    ask_eligibility: AskEligibility = nothing_asked
    charge_budgets: ChargeBudgets = nothing_charged
    caps: Callable[[], Caps] = lambda: NO_CAPS
    """The most retries of some owners."""
    errors_given_up: Callable[[], ErrorsGivenUp] = lambda: NOTHING_GIVEN_UP
    """The errors whose retries (almost) never succeed, as last read."""
    in_flight: set[str] = field(default_factory=set)
    """Retries and messages that this router is moving right now; a second request for one of them waits."""

    async def handle(self, deliveries: Sequence[Delivery], given_up: Callable[[], bool] = lambda: False) -> Result:
        """Handles one batch; the result says which deliveries to acknowledge and which to requeue.

        `given_up` says whether the broker may have given the deliveries to another consumer by now.
        """
        started, began_ms = time.perf_counter(), self.now_ms()
        items = [self._understand(delivery) for delivery in deliveries]
        requests, later = self._take_turns([item for item in items if isinstance(item, Request)])
        try:
            # Asked before the claim: other routers may wait for a claim, which must not wait for HTTP.
            unwanted = await self.ask_eligibility(requests, self.rules) if self.rules.asks else {}
            ours, duplicates, undecided = await self._claim(requests, given_up)
            plans = [await self._decide(one, round_, unwanted.get(one.delivery.tag)) for one, round_ in ours]
            plans = await self.charge_budgets(plans, self.rules) if self.rules.charges else plans
            plans += [self._refuse(item) for item in items if isinstance(item, Refused)]
            decided = time.perf_counter()
            skipped = [plan for plan in plans if isinstance(plan.decision, Skip)]
            moved, stuck, detours = await self._publish([plan for plan in plans if not isinstance(plan.decision, Skip)])
            confirmed = time.perf_counter()
            await self._record([*moved, *((plan, None) for plan in skipped)], duplicates)
        finally:
            self.in_flight.difference_update(key for request in requests for key in _turns(request))
        finished = [
            *(plan.item.delivery.tag for plan, _ in moved),
            *(plan.item.delivery.tag for plan in skipped),
            *(request.delivery.tag for request in duplicates),
            *(item.delivery.tag for item in items if isinstance(item, Probe)),
        ]
        waiting = [*(plan.item.delivery.tag for plan, _ in stuck), *(one.delivery.tag for one in (*later, *undecided))]
        return Result(
            [*(plan for plan, _ in moved), *skipped],
            stuck,
            detours,
            duplicates,
            finished,
            waiting,
            decided - started,
            confirmed - decided,
            began_ms,
        )

    async def give_up(self, delivery: Delivery, reason: str, *, is_request: bool = True) -> Result:
        """Sends a delivery that cannot be handled in any other way to review, with its whole content."""
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
        """Parses a delivery. Any error refuses this delivery only; the rest of the batch is not affected."""
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
        """Allows one request per retry and message at a time: whether a second request is a duplicate is known only
        after the broker has confirmed the first.
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
        """The granted requests, with their round and the audit's count; the duplicates; the undecided requests."""
        known = [request for request in requests if not is_new(request)]
        answer = await self.ledger.claim([claim_of(request) for request in known]) if known else NOTHING
        if requests and given_up():
            # This router was frozen or disconnected before the claim. Another router may have completed these
            # requests, and then nothing would ever complete the rounds claimed now. Requests that are not completed
            # are delivered again.
            if answer.granted:
                await self.ledger.unclaim([(one.retry_id, one.round) for one in answer.granted.values()])
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

    async def _decide(self, request: Request, round_: int, unwanted: str | None) -> RoutePlan:
        now = self.now_ms()
        plan = RoutePlan(request, round_, decide(request.failure, self.rules, now, self.draw(), self.caps()), now)
        if unwanted is not None and isinstance(plan.decision, Schedule):
            return to_skip(plan, plan.decision, unwanted)
        if isinstance(plan.decision, Schedule) and plan.decision.policy.adaptive is not None:
            draw = draw_of(request.retry_id)
            by_now = by_history(plan.decision, request.failure, self.errors_given_up(), now, draw)
            plan = plan._replace(decision=by_now)
        unreachable = await self.ensure_bound(plan.destination) if isinstance(plan.decision, Schedule) else None
        return plan if unreachable is None else to_review(plan, unreachable)

    def _refuse(self, item: Refused) -> RoutePlan:
        return RoutePlan(item, 0, Review(None, None, item.reason), self.now_ms())

    async def _publish(
        self, plans: Sequence[RoutePlan]
    ) -> tuple[
        list[tuple[RoutePlan, Message]], list[tuple[RoutePlan, PublishOutcome]], list[tuple[RoutePlan, PublishOutcome]]
    ]:
        """Publishes plans, and sends those that their tier refused by the ladder: a tier that is missing or full must
        not delay its messages or those behind them. The ladder takes any delay, at the cost of one or two more hops.
        """
        moved, stuck = await self._send(plans)
        ways = {plan.token: way for plan, why in stuck if (way := detour(plan, why, self.rules)) is not None}
        if not ways:
            return moved, stuck, []
        around, _ = await self._send(list(ways.values()))
        done = {plan.token for plan, _ in around}
        left = [one for one in stuck if one[0].token not in done]
        return moved + around, left, [one for one in stuck if one[0].token in done]

    async def _send(
        self, plans: Sequence[RoutePlan]
    ) -> tuple[list[tuple[RoutePlan, Message]], list[tuple[RoutePlan, PublishOutcome]]]:
        planned = [message_of(plan, self.names, self.frame_max()) for plan in plans]
        outcomes = await self.publish([message for _, message in planned]) if planned else []
        answered = list(zip(planned, outcomes, strict=True))
        moved = [one for one, outcome in answered if outcome is PublishOutcome.CONFIRMED]
        return moved, [(plan, outcome) for (plan, _), outcome in answered if outcome is not PublishOutcome.CONFIRMED]

    async def _record(self, moved: Sequence[tuple[RoutePlan, Message | None]], duplicates: Sequence[Request]) -> None:
        if moved:
            names, ladder = self.names, self.rules.ladder
            await self.ledger.record([record_of(plan, sent, names, ladder) for plan, sent in moved])
            if legs := [
                leg for plan, sent in moved if sent and (leg := first_leg(plan, sent, names, ladder)) is not None
            ]:
                await self.ledger.record_legs(legs)
        if duplicates:
            await self.ledger.duplicates([(request.retry_id, request.failure.round + 1) for request in duplicates])


def _turns(request: Request) -> tuple[str, ...]:
    """Keys that must not be moved twice at the same time. A message is also recognised by its body, so two messages
    with the same queue, id and body may be treated as the same retry.
    """
    if request.identity is None or request.message_id is None or not request.deduplicable:
        return (request.retry_id,)
    return (request.retry_id, same_body(request.identity))


@dataclass(slots=True)
class CurrentPipeline:
    """The pipeline with the rules in use. A batch in progress keeps the pipeline that it began with."""

    current: Pipeline

    def use(self, rules: Rulebook, accept: Acceptance) -> None:
        """Applies these rules from the next batch on."""
        self.current = replace(self.current, rules=rules, accept=accept)

    async def give_up_copy(self, delivery: Delivery, reason: str) -> Result:
        """Sends a delivery that is not a request, but a copy of a message or a record of the spool, to review."""
        return await self.current.give_up(delivery, reason, is_request=False)


@dataclass(frozen=True, slots=True)
class RequestHandler:
    """The handler of the request queue."""

    pipeline: CurrentPipeline
    report: Callable[[Result], None]

    async def __call__(self, batch: Sequence[Delivery], given_up: Callable[[], bool]) -> BatchResult:
        pipeline = self.pipeline.current
        results = await handle_batch(batch, lambda part: pipeline.handle(part, given_up), pipeline.give_up)
        for result in results:
            if isinstance(result, Result):
                self.report(result)
        return BatchResult.of(results)

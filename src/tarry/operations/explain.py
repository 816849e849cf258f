"""Explains what would become of a failed message: the policy, the delay, the tiers, or the reason for a review."""

from __future__ import annotations

import binascii
import json
import os
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pika import spec
from pika.exceptions import ChannelClosedByBroker

from tarry.amqp.connection import AmqpConnection
from tarry.amqp.declare import NOT_FOUND, refusal
from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, cut, table
from tarry.amqp.properties import Properties
from tarry.amqp.url import Address
from tarry.contract import headers as h
from tarry.contract.envelope import json_problem
from tarry.contract.message import Request
from tarry.core.adaptive import draw_of
from tarry.core.budgets import NO_CAPS, Budget, Caps, Per, Slot
from tarry.core.decide import Decision, Failure, Schedule, Skip, by_history
from tarry.core.eligibility import OnError
from tarry.core.json_types import DOCUMENTED
from tarry.core.ladder import Itinerary, Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.errors import AuditError, MissingOnBrokerError, SettingsError
from tarry.operations.adaptive import explain_error
from tarry.operations.breaker import breaker_of
from tarry.operations.budgets import read_caps
from tarry.router.budgets import Budgets
from tarry.router.eligibility import HttpClient, NoAnswerError
from tarry.router.explain import Explanation, Question, explain
from tarry.router.plan import RoutePlan
from tarry.store.claims import charge_parameters, charged
from tarry.store.database import PostgresPool
from tarry.store.rows import Charge, Charged
from tarry.topology.model import Topology
from tarry.topology.record import TopologySource

_SHORT = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
_INTEGERS = ("delivery_mode", "priority", "timestamp")


@dataclass(frozen=True, slots=True)
class ExplainedBudget:
    """A budget that a message would count in, in the period in which it would come due without budgets."""

    __pydantic_config__ = DOCUMENTED

    budget: str
    """Its limit, by the policy."""
    subject: str
    """The owner or the queue; empty for a budget per policy."""
    over: str
    """What becomes of a retry for which there is no room: `defer`, `review` or `skip`."""
    period_begins: str
    period_ends: str
    used: int | None
    """null if it is not known here: the topology files do not have it."""
    limit: int
    """With the exception of the owner, if it is known."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What would become of one message, and why. Lists have one value, or two if jitter makes a difference."""

    __pydantic_config__ = DOCUMENTED

    outcome: str
    """`schedule`, `review` or `skip`."""
    reason: str | None
    """Why it would go to review, or be skipped."""
    form: str | None
    """How the request was read."""
    queue: str | None
    owner: str | None
    """Whom the message belongs to, as it says."""
    policy: str | None
    policy_why: str
    error_class: str | None
    class_why: str
    retry_count: int | None
    max_retries: int | None
    spends_attempt: bool
    delay_ms: list[int]
    delay_why: str
    window_why: str
    """How the policy's windows moved the due time; empty if they did not."""
    itinerary: list[list[str]]
    """The queues that it would wait in; of a delay that takes several legs, those of the first."""
    legs_ms: list[list[int]]
    """How long each leg takes, if the delay is longer than the ladder holds; otherwise empty."""
    lane: str | None
    """The lane whose tiers these are; null if they are those that all policies without a lane share."""
    due: list[str]
    returns_to: str | None
    return_priority: int | None
    """The AMQP priority that it would return with; null if it has none."""
    priority_why: str
    eligibility: str
    """What the policy's eligibility endpoint would be asked, or has answered; empty if the policy has none."""
    budgets: list[ExplainedBudget]
    """The budgets that it would count in."""
    budget_why: str
    """What they would make of it; empty if there are none."""
    adaptive: str
    """What the history says about its error; empty if the policy does not decide from history."""
    max_rate: int | None
    """The most returns a second to its queue by the policies of that queue; null if they set no limit."""
    breaker: str
    """When the breaker of its queue opens; empty if its policies have none."""
    review_queue: str
    topology: TopologySource


@dataclass(frozen=True, slots=True)
class ScheduledRetry:
    """One retry of a schedule."""

    __pydantic_config__ = DOCUMENTED

    retry: int
    delay_ms: int
    longest_jitter_ms: int
    after_ms: int
    """Time since the first failure, without jitter."""


@dataclass(frozen=True, slots=True)
class PolicySchedule:
    """The whole schedule of a policy."""

    __pydantic_config__ = DOCUMENTED

    policy: str
    match: dict[str, str]
    max_retries: int
    max_retries_ceiling: int
    """The most retries that a request may ask for."""
    lane: str | None
    """The lane of its tiers; null if it shares its tiers with other policies without a lane."""
    return_priority: int | None
    """The AMQP priority of a returning message; null if it keeps its own."""
    windows: list[str]
    """At which times messages may return; empty if at any time."""
    budgets: list[str]
    """How many retries may come due in a period, and what becomes of the others; empty if there is no limit."""
    eligibility: str
    """Which endpoint is asked before a retry; empty if none."""
    max_rate: int | None
    """The most returns a second to each queue; null if there is no limit."""
    breaker: str
    """When the breaker of a queue opens; empty if the policy has none."""
    adaptive: str
    """When an error is given up; empty if the policy does not decide from history."""
    retries: list[ScheduledRetry]
    review_queue: str


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains by one topology. Needs a broker only for `explain_first`, and Postgres only for what is used of budgets,
    for exceptions of owners and for what the history says.
    """

    topology: Topology
    address: Address
    store: PostgresPool | None = None

    async def explain(
        self, messages: Sequence[Mapping[str, Any]], *, queue: str | None = None, ask: bool = False
    ) -> list[Explained]:
        """Messages as the management API shows them. With `queue`: what a reject in that queue would lead to. With
        `ask`: the eligibility endpoint of the policy is asked.

        A message without a routing key counts as published to the request queue.
        """
        names = self.topology.broker_names
        try:
            found = [read_message({"routing_key": names.scheduled, **one}) for one in messages]
        except UNREADABLE as error:
            raise no_message("The request", error) from error
        return [await self._explain(as_rejected(one, queue, names) if queue else one, ask=ask) for one in found]

    async def explain_first(self, queue: str, *, ask: bool = False) -> Explained:
        """The first message of a queue. It is taken and put back, and marked as redelivered by that.

        A message in a user's own queue is not a request yet: the question is what a reject would lead to.
        """
        found = await peek(self.address, queue)
        if found is None:
            raise SettingsError(f"The queue {queue!r} is empty: there is nothing to explain.")
        names = self.topology.broker_names
        return await self._explain(found if names.is_ours(queue) else as_rejected(found, queue, names), ask=ask)

    async def policy_schedules(
        self,
        *,
        policy: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        job_type: str | None = None,
    ) -> list[PolicySchedule]:
        """The policy of that name, else the one that matches, else all; durations are scaled by the time scale."""
        found = _policies(self.topology, Failure(queue or "", priority=priority, job_type=job_type), policy)
        return [_schedule(one, self.topology.names.review) for one in found]

    async def _explain(self, delivery: Delivery, *, ask: bool) -> Explained:
        now_ms = time.time_ns() // 1_000_000
        caps = await _caps(self.store) if self.store is not None else NO_CAPS
        found = explain(delivery, self.topology, now_ms, os.environ, caps)
        explained = await self._by_history(_explained(found, self.topology), found, now_ms)
        charged = found.earliest is not None and found.earliest.policy.budgets and explained.outcome == "schedule"
        if found.request is not None and charged:
            explained = await _budgeted(explained, found, self.topology, now_ms, self.store)
        return await _asked(explained, found.question) if ask and found.question else explained

    async def _by_history(self, explained: Explained, found: Explanation, now_ms: int) -> Explained:
        """The same, with what the history says about its error."""
        request, decision = found.request, found.earliest
        if request is None or decision is None or decision.policy.adaptive is None:
            return explained
        if self.store is None:
            return replace(
                explained, adaptive="what the history says is not known here: with --api the service is asked"
            )
        given_up, why = await explain_error(self.store, decision.policy, decision.policy.adaptive, request.failure)
        ids = draw_of(request.retry_id) if request.knows_round else 1.0
        after = by_history(decision, request.failure, given_up, now_ms, ids)
        if isinstance(after, Schedule):
            return replace(explained, adaptive=f"{why}. It is one of those" if after.tried else why)
        return replace(_waiting(explained, [], self.topology), outcome="review", reason=after.reason, adaptive=why)


async def _caps(store: PostgresPool) -> Caps:
    """Without Postgres none are known, as to a service that has just started."""
    with suppress(AuditError):
        return await read_caps(store)
    return NO_CAPS


@dataclass
class DryRunLedger:
    """Answers as a charge would be answered now, and charges nothing."""

    store: PostgresPool
    trouble: AuditError | None = None

    async def charge(
        self, policy: Policy, charges: Sequence[Charge], slots: Sequence[Slot], *, is_all: bool
    ) -> list[Charged]:
        try:
            async with self.store.transaction(dry_run=True) as session:
                rows = await session.rows("charge", **charge_parameters(policy, charges, slots, is_all=is_all))
        except AuditError as error:
            self.trouble = error
            return []
        return list(map(charged, rows))


async def _budgeted(
    explained: Explained, found: Explanation, topology: Topology, now_ms: int, store: PostgresPool | None
) -> Explained:
    """The same, with the budgets that it would count in, and what they would make of it."""
    request, ends = found.request, [one for one in (found.earliest, found.latest) if one is not None]
    if request is None or not ends:
        return explained
    if store is None:
        shown = [_shown(ends[0], request, budget, None) for budget in _counted(ends[0], request)]
        why = "what is used is not known here: with --api the service is asked"
        return replace(explained, budgets=shown, budget_why=why if shown else "")
    ledger, rules = DryRunLedger(store), topology.rules
    charge = Budgets(ledger, lambda: 0.0, lambda _policy, _number: None)
    plans = [await charge([RoutePlan(request, 1, one, now_ms)], rules) for one in ends]
    decisions = [plan.decision for (plan,) in plans]
    uses = await _uses(ledger, ends[0], request)
    shown = [_shown(ends[0], request, budget, uses.get(budget)) for budget in _counted(ends[0], request)]
    if ledger.trouble is not None:
        return replace(explained, budgets=shown, budget_why=f"not applied: {ledger.trouble}")
    return _decided_by(replace(explained, budgets=shown), decisions, topology) if shown else explained


def _counted(decision: Schedule, request: Request) -> list[Budget]:
    owner, queue = request.failure.owner, request.origin.queue
    return [one for one in decision.policy.budgets if one.subject(owner, queue) is not None]


async def _uses(ledger: DryRunLedger, decision: Schedule, request: Request) -> dict[Budget, tuple[int, int]]:
    """What is used of each budget, and its limit."""
    budgets, policy = _counted(decision, request), decision.policy
    parameters = {
        "budgets": [one.key(policy.name) for one in budgets],
        "subjects": [one.subject(request.failure.owner, request.origin.queue) for one in budgets],
        "starts_ms": [one.period(decision.due_ms).starts for one in budgets],
        "owners": [one.per is Per.OWNER for one in budgets],
        "everys": [one.every.value for one in budgets],
        "limits": [one.limit for one in budgets],
    }
    try:
        rows = await ledger.store.rows("budget_room", **parameters, policy=policy.name)
    except AuditError as error:
        ledger.trouble = error
        return {}
    return {budget: (used, most) for budget, (used, most) in zip(budgets, rows, strict=True)}


def _shown(decision: Schedule, request: Request, budget: Budget, use: tuple[int, int] | None) -> ExplainedBudget:
    period = budget.period(decision.due_ms)
    return ExplainedBudget(
        budget=budget.describe(),
        subject=budget.subject(request.failure.owner, request.origin.queue) or "",
        over=budget.over.value,
        period_begins=_moment(period.starts),
        period_ends=_moment(period.ends),
        used=use[0] if use else None,
        limit=use[1] if use else budget.limit,
    )


def _decided_by(explained: Explained, decisions: Sequence[Decision], topology: Topology) -> Explained:
    """The same, with what the budgets would make of it."""
    ends = [one for one in decisions if isinstance(one, Schedule)]
    refused = next((one for one in decisions if not isinstance(one, Schedule)), None)
    if refused is not None:
        outcome = "skip" if isinstance(refused, Skip) else "review"
        return replace(explained, outcome=outcome, reason=refused.reason, budget_why=refused.reason)
    deferred = next((one for one in ends if one.deferred_from_ms is not None), None)
    if deferred is None:
        return replace(explained, budget_why="all of them have room")
    why = f"no room in {deferred.budget}: deferred to the first later period in which all of them have room"
    return replace(_waiting(explained, ends, topology), budget_why=why)


def _waiting(explained: Explained, ends: Sequence[Schedule], topology: Topology) -> Explained:
    names, ladder = topology.broker_names, topology.ladder_shape
    return replace(
        explained,
        delay_ms=[one.itinerary.delay_ms for one in ends],
        itinerary=[list(queues_of(one.itinerary, names, ladder)) for one in ends],
        legs_ms=[list(one.itinerary.legs(ladder)) for one in ends if one.itinerary.leg_ms],
        lane=ends[0].itinerary.lane if ends else None,
        due=[_moment(one.due_ms) for one in ends],
    )


async def _asked(explained: Explained, question: Question) -> Explained:
    """The same, with the answer of the endpoint."""
    rule, client = question.policy.eligibility, HttpClient()
    if rule is None:
        return explained
    try:
        found = await client.ask(question.url, rule, question.policy.name, [question.value])
    except NoAnswerError as error:
        answered = replace(explained, eligibility=f"{explained.eligibility}. It gave no answer now: {error}")
        skipped = rule.on_error is OnError.SKIP
        return replace(answered, outcome="skip", reason=f"{error}; on_error is skip") if skipped else answered
    finally:
        await client.close()
    reason = found.get(question.value)
    if reason is None:
        return replace(explained, eligibility=f"{explained.eligibility}. It answers: wanted")
    answered = replace(explained, eligibility=f"{explained.eligibility}. It answers: not wanted")
    if not rule.asks_when_scheduled:
        later = f"{answered.eligibility} ({reason}). It would be skipped when it is due, if that is so then"
        return replace(answered, eligibility=later)
    return replace(answered, outcome="skip", reason=reason)


def _schedule(policy: Policy, review_queue: str) -> PolicySchedule:
    return PolicySchedule(
        policy=policy.name,
        match=policy.match.model_dump(exclude_none=True),
        max_retries=policy.max_retries,
        max_retries_ceiling=policy.ceiling,
        lane=policy.lane,
        return_priority=policy.return_priority,
        windows=[window.describe() for window in policy.windows],
        budgets=[f"{one.describe()}, over it: {one.over}" for one in policy.budgets],
        eligibility=policy.eligibility.describe(os.environ) if policy.eligibility else "",
        max_rate=policy.max_rate,
        breaker=policy.breaker.describe() if policy.breaker else "",
        adaptive=policy.adaptive.describe() if policy.adaptive else "",
        retries=list(_retries(policy)),
        review_queue=review_queue,
    )


def _policies(topology: Topology, failure: Failure, name: str | None) -> tuple[Policy, ...]:
    rules = topology.rules
    if name is not None:
        found = [policy for policy in rules.policies if policy.name == name]
        if not found:
            known = ", ".join(policy.name for policy in rules.policies)
            raise SettingsError(f"There is no policy {name!r}. Known: {known}.")
        return tuple(found)
    if not failure.queue:
        return rules.policies
    policy = rules.policy_for(failure)
    if policy is None:
        raise SettingsError(f"No policy matches queue {failure.queue!r}: its failures go to review.")
    return (policy,)


def _retries(policy: Policy) -> Iterator[ScheduledRetry]:
    after = 0
    for count in range(policy.max_retries):
        delay = policy.delay(count)
        after += delay
        yield ScheduledRetry(count + 1, delay, policy.longest_jitter(delay), after)


def _explained(found: Explanation, topology: Topology) -> Explained:
    ends = [one for one in (found.earliest, found.latest) if one is not None]
    failure = found.failure
    explained = Explained(
        outcome="review" if found.review is not None else "schedule",
        reason=found.review,
        form=found.form,
        queue=failure.queue if failure else None,
        owner=failure.owner if failure else None,
        policy=found.policy,
        policy_why=found.policy_why,
        error_class=found.error_class,
        class_why=found.class_why,
        retry_count=ends[0].retry_count if ends else None,
        max_retries=ends[0].max_retries if ends else None,
        spends_attempt=bool(ends) and failure is not None and ends[0].retry_count > failure.retry_count,
        delay_ms=[],
        delay_why=found.delay_why,
        window_why=found.window_why,
        itinerary=[],
        legs_ms=[],
        lane=None,
        due=[],
        returns_to=found.returns_to,
        return_priority=found.return_priority,
        priority_why=found.priority_why,
        eligibility=found.eligibility,
        budgets=[],
        budget_why="",
        adaptive="",
        max_rate=_max_rate(topology, failure.queue) if ends and failure is not None else None,
        breaker=_breaker(topology, failure.queue) if ends and failure is not None else "",
        review_queue=topology.names.review,
        topology=TopologySource.of(topology),
    )
    return _waiting(explained, ends, topology)


def _max_rate(topology: Topology, queue: str) -> int | None:
    rates = [one.max_rate for one in topology.rules.policies_of_queue(queue) if one.max_rate is not None]
    return min(rates, default=None)


def _breaker(topology: Topology, queue: str) -> str:
    found = breaker_of(queue, topology)
    return f"{found.rule.describe()} (policy {found.policy})" if found else ""


def queues_of(way: Itinerary, names: Names, ladder: Ladder) -> Iterator[str]:
    """Every queue that a message waits in."""
    if way.tier_ms is not None:
        yield names.tier(way.tier_ms, way.lane)
    top = len(way.digits) - 1
    for place, digit in enumerate(way.digits):
        if digit:
            yield names.ladder_queue(top - place, ladder.ttl(top - place, digit), way.lane)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What `read_message` raises for something that is not a message."""


def no_message(where: str, error: Exception) -> SettingsError:
    return SettingsError(
        f"{where} does not contain a message: {_problem(error)}. Paste one as the management UI shows it: "
        '{"properties": {"headers": {…}}, "payload": "…", "exchange": "", "routing_key": "orders"}.'
    )


def _problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    odd = isinstance(error, TypeError | AttributeError | OverflowError | UnicodeEncodeError | binascii.Error)
    return "a value in it has the wrong type" if odd else json_problem(error)


def read_message(found: Mapping[str, Any]) -> Delivery:
    given = dict(found.get("properties") or {})
    fields: dict[str, Any] = {"headers": table(found.get("headers") or given.get("headers") or {})}
    fields |= {name: str(given[name]).encode() for name in _SHORT if name in given}
    fields |= {name: _whole_number(name, given[name]) for name in _INTEGERS if name in given}
    payload = found.get("payload", "")
    body = payload if isinstance(payload, str) else json.dumps(payload)
    return Delivery(
        b64decode(body, validate=True) if found.get("payload_encoding") == "base64" else body.encode(),
        Properties(**fields),
        str(found.get("exchange") or ""),
        str(found.get("routing_key") or ""),
        bool(found.get("redelivered")),
    )


def _whole_number(name: str, value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"`{name}` is not a whole number")
    return value


def as_rejected(delivery: Delivery, queue: str, names: Names) -> Delivery:
    """The message as tarry would receive it if a consumer rejected it in `queue` now."""
    exchange, key = _text(delivery.exchange), _text(delivery.routing_key)
    death = {"count": 1, "reason": "rejected", "queue": queue, "exchange": exchange, "routing-keys": [key]}
    try:
        kept = cut(delivery.properties.headers or b"", lambda name: name == h.DEATHS.encode())
    except BadTableError:
        return delivery
    properties = replace(delivery.properties, headers=kept + table({h.DEATHS: [death]}))
    return delivery._replace(properties=properties, exchange=names.intake)


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")


async def peek(address: Address, queue: str) -> Delivery | None:
    """The first message of a queue, which is put back; None if the queue is empty."""
    link = await AmqpConnection.open(address, "explain: peek")
    found: list[Delivery] = []
    try:

        def ask(answered: Any) -> None:
            def take(_: object, method: Any, properties: Any, body: bytes) -> None:
                found.append(Delivery(body, properties, method.exchange, method.routing_key, method.redelivered))
                link.channel.basic_nack(method.delivery_tag, requeue=True)
                answered(None)

            link.channel.add_callback(answered, [spec.Basic.GetEmpty])
            link.channel.basic_get(queue, take)

        await link.answer(ask)
    except ChannelClosedByBroker as closed:
        if closed.reply_code == NOT_FOUND:
            raise MissingOnBrokerError(f"There is no queue {queue!r} at {address}.") from closed
        raise refusal(address, closed.reply_code, closed.reply_text) from closed
    finally:
        await link.close()
    return found[0] if found else None

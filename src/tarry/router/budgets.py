"""Charges the budgets of what would be scheduled, after the decision and before anything is published.

A retry that is charged comes due in a period that has room for it. The answer is stored under its id and round: a
request that is delivered again, after a crash or because the broker refused the message, is not charged twice. If it
should have come due by then, it is charged for the period in which it comes due now.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import structlog

from tarry.contract.message import Request
from tarry.core.budgets import Over, Slot, slots
from tarry.core.decide import Decision, Review, Rulebook, Schedule, Skip, latest_due, postponed
from tarry.core.durations import humanise
from tarry.core.ladder import LONGEST_DELAY
from tarry.core.policy import Policy
from tarry.errors import AuditError, DelayTooLongError
from tarry.router.plan import RoutePlan, storable
from tarry.store.rows import Charge, Charged, ChargeOutcome

log = structlog.get_logger()

AHEAD = 24
"""Slots after the last due time that a charge may use at first. If none has room, a whole year is searched."""

SEARCHED_AT_ONCE = 20
"""Of how many owners and queues a whole year is searched in one statement: an hourly budget has 8,784 slots, and a
statement that takes too long counts as an outage of Postgres.
"""

MILLION = 1_000_000

NOT_APPLIED = "budgets are not applied"
APPLIED_AGAIN = "budgets are applied again"


class BudgetLedger(Protocol):
    """The store as this step needs it."""

    trouble: AuditError | None
    """Why Postgres is not in use now, or None."""

    async def charge(
        self, policy: Policy, charges: Sequence[Charge], slots: Sequence[Slot], *, is_all: bool
    ) -> list[Charged]:
        """There is no answer about a retry that could not be charged."""


class Asked(NamedTuple):
    """A plan that is charged."""

    plan: RoutePlan
    request: Request
    decision: Schedule

    @property
    def policy(self) -> Policy:
        return self.decision.policy


class Budgets:
    """This step of the pipeline."""

    def __init__(
        self, ledger: BudgetLedger, draw: Callable[[], float], count_unapplied: Callable[[str, int], None]
    ) -> None:
        self._ledger = ledger
        self._draw = draw
        self._count_unapplied = count_unapplied
        self._failing: set[str] = set()
        """Policies whose retries were not charged when this was last tried."""

    def troubles(self, rules: Rulebook) -> list[str]:
        """For health checks."""
        if self._ledger.trouble is None or not rules.charges:
            return []
        names = ", ".join(policy.name for policy in rules.policies if policy.budgets)
        return [f"{NOT_APPLIED} while Postgres is unavailable: retries of {names} are scheduled without them"]

    async def __call__(self, plans: Sequence[RoutePlan], rules: Rulebook) -> list[RoutePlan]:
        """The plans, changed where a budget has no room. What cannot be charged stays as it is."""
        changed: dict[str, RoutePlan] = {}
        for asked in _by_policy(plans):
            changed |= await self._charge(asked, rules)
        return [changed.get(plan.token, plan) for plan in plans]

    async def _charge(self, asked: Sequence[Asked], rules: Rulebook) -> dict[str, RoutePlan]:
        """Charges retries of one policy."""
        answers = await self._ask(asked, rules, is_all=False)
        for full in _in_parts([one for one in asked if _needs_more(answers.get(one.plan.token))]):
            answers |= await self._ask(full, rules, is_all=True)
        charged = {token: answer for token, answer in answers.items() if not _needs_more(answer)}
        self._report(asked[0].policy.name, len(asked) - len(charged))
        return {token: applied(one, charged[token], rules) for one in asked if (token := one.plan.token) in charged}

    async def _ask(self, asked: Sequence[Asked], rules: Rulebook, *, is_all: bool) -> dict[str, Charged]:
        """The answers, by token. If Postgres fails in between, `more` remains, and the retry is not charged."""
        found = usable_slots(asked, rules, is_all=is_all)
        begins = [slot.begins_ms for slot in found]
        charges = [self._charge_of(one, bisect_right(begins, one.decision.due_ms)) for one in asked]
        answers = await self._ledger.charge(asked[0].policy, charges, found, is_all=is_all)
        return {f"{one.retry_id}:{one.round}": one for one in answers}

    def _charge_of(self, asked: Asked, slot: int) -> Charge:
        plan, failure = asked.plan, asked.request.failure
        return Charge(
            asked.request.retry_id,
            plan.round,
            storable(failure.owner),
            storable(plan.queue) or "",
            slot,
            asked.decision.due_ms,
            latest_due(failure, asked.policy, plan.now_ms),
            int(self._draw() * MILLION),
            plan.now_ms,
        )

    def _report(self, policy: str, unapplied: int) -> None:
        if unapplied:
            self._count_unapplied(policy, unapplied)
            if policy not in self._failing:
                log.warning(NOT_APPLIED, policy=policy, why="Postgres did not charge its retries")
            self._failing.add(policy)
        elif policy in self._failing:
            self._failing.discard(policy)
            log.info(APPLIED_AGAIN, policy=policy)


def _by_policy(plans: Iterable[RoutePlan]) -> Iterator[list[Asked]]:
    """What counts in a budget, by policy."""
    found: dict[str, list[Asked]] = {}
    for plan in plans:
        item, decision = plan.item, plan.decision
        if not isinstance(item, Request) or not isinstance(decision, Schedule):
            continue
        owner = storable(item.failure.owner)
        if any(budget.subject(owner, plan.queue) is not None for budget in decision.policy.budgets):
            found.setdefault(decision.policy.name, []).append(Asked(plan, item, decision))
    yield from found.values()


def _in_parts(asked: Iterable[Asked]) -> Iterator[list[Asked]]:
    """Those of the same owner and queue are in one part: they are searched for together."""
    by_counters: dict[tuple[str | None, str], list[Asked]] = {}
    for one in asked:
        by_counters.setdefault((one.request.failure.owner, one.plan.queue), []).append(one)
    groups = list(by_counters.values())
    for start in range(0, len(groups), SEARCHED_AT_ONCE):
        yield [one for group in groups[start : start + SEARCHED_AT_ONCE] for one in group]


def _needs_more(answer: Charged | None) -> bool:
    return answer is not None and answer.outcome is ChargeOutcome.MORE


def usable_slots(asked: Sequence[Asked], rules: Rulebook, *, is_all: bool) -> list[Slot]:
    """The slots from the earliest due time on: of a year, or some more than the due times are in."""
    policy, granularity = asked[0].policy, rules.ladder.granularity_ms
    dues = [one.decision.due_ms for one in asked]
    until = min(one.plan.now_ms for one in asked) + LONGEST_DELAY - granularity
    found = slots(policy.budgets, policy.windows, min(dues), max(until, *dues), granularity)
    if is_all:
        return list(found)
    last, ahead = max(dues), AHEAD if any(one.over is Over.DEFER for one in policy.budgets) else 0
    some: list[Slot] = []
    for slot in found:
        if slot.begins_ms > last and ahead <= 0:
            break
        ahead -= slot.begins_ms > last
        some.append(slot)
    return some


def applied(asked: Asked, answer: Charged, rules: Rulebook) -> RoutePlan:
    """The plan as the budgets allow it."""
    plan, decision = asked.plan, asked.decision
    if answer.outcome is ChargeOutcome.CHARGED:
        if answer.due_ms is None or answer.due_ms == decision.due_ms:
            return plan
        return plan._replace(decision=_deferred(asked, answer, answer.due_ms, rules))
    return plan._replace(decision=_over(decision, answer))


def _deferred(asked: Asked, answer: Charged, due_ms: int, rules: Rulebook) -> Decision:
    decision, budget = asked.decision, _budget(asked.policy, answer)
    try:
        later = postponed(decision, due_ms, rules, asked.plan.now_ms)
    except DelayTooLongError as too_long:
        return Review(decision.policy, decision.error_class, str(too_long), budget=budget)
    return later if budget is None else later._replace(deferred_from_ms=decision.due_ms, budget=budget)


def _over(decision: Schedule, answer: Charged) -> Review | Skip:
    policy, error_class = decision.policy, decision.error_class
    budget = _budget(policy, answer) or ""
    over = f"over its budget of {budget}"
    if answer.outcome is ChargeOutcome.SKIP:
        return Skip(policy, error_class, over, budget)
    if answer.outcome is ChargeOutcome.REVIEW:
        return Review(policy, error_class, over, budget=budget)
    if answer.outcome is ChargeOutcome.LATE and policy.max_age is not None:
        age = humanise(policy.max_age)
        why = f"exhausted: {over}, which has room again only later than {age} after its first failure"
        return Review(policy, error_class, why, exhausted=True, budget=budget)
    return Review(policy, error_class, f"{over}, which has no room for it within a year", budget=budget)


def _budget(policy: Policy, answer: Charged) -> str | None:
    """The budget that had no room, in words, with the limit that applied. It may be gone from the policy since."""
    if answer.full is None:
        return None
    found = next((one for one in policy.budgets if one.key(policy.name) == answer.full), None)
    return answer.full if found is None else found.describe(answer.most)

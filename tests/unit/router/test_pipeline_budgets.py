"""The budgets in the pipeline: charged after the decision and before publishing, and only what would be scheduled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from tarry.contract.message import Request
from tarry.core.budgets import Caps, Slot
from tarry.core.decide import Rulebook
from tarry.core.ladder import LONGEST_DELAY, Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.core.states import State
from tarry.errors import AuditError, AuditUnavailableError
from tarry.router.actions import actions
from tarry.router.budgets import AHEAD, SEARCHED_AT_ONCE, Budgets
from tarry.router.pipeline import Pipeline
from tarry.service.metrics import Metrics
from tarry.store.rows import Charge, Charged, ChargeOutcome
from tests.unit.contract.wire import published, rejected
from tests.unit.router.test_pipeline import NOW, POLICY, Fakes, handle, header

DAY = 86_400_000
TOMORROW = (NOW // DAY + 1) * DAY
OVER = "over its budget of 5 retries per queue and day (UTC)"


def budgeted(**fields: object) -> Policy:
    budget = {"per": "queue", "limit": 5, "every": "1d"}
    return Policy.model_validate(
        {"name": "plain", "schedule": ["2s", "8s"], "max_retries": 2, "budget": budget, **fields}
    )


@dataclass
class FakeBudgetLedger:
    """Answers as it is told, and remembers what it was asked."""

    log: list[str]
    outcome: ChargeOutcome | None = ChargeOutcome.CHARGED
    due_ms: int | None = None
    """None: the charge's own."""
    lengths: list[int] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)
    trouble: AuditError | None = None

    async def charge(
        self, policy: Policy, charges: Sequence[Charge], slots: Sequence[Slot], *, is_all: bool
    ) -> list[Charged]:
        self.log.append("charge")
        self.charges += charges
        self.lengths.append(len(slots))
        if self.outcome is None:
            return []
        outcome = ChargeOutcome.CHARGED if self.outcome is ChargeOutcome.MORE and is_all else self.outcome
        return [self._answer(one, outcome, policy.budgets[0].key(policy.name)) for one in charges]

    def _answer(self, charge: Charge, outcome: ChargeOutcome, key: str) -> Charged:
        is_charged = outcome is ChargeOutcome.CHARGED
        due_ms = (self.due_ms or charge.due_ms) if is_charged else None
        has_room = is_charged and self.due_ms is None
        return Charged(
            charge.retry_id, charge.round, outcome, due_ms, None if has_room else key, None if has_room else 5
        )


@dataclass
class BudgetFakes(Fakes):
    """A pipeline with budgets."""

    budgets: FakeBudgetLedger = field(init=False)
    unapplied: list[tuple[str, int]] = field(default_factory=list)
    step: Budgets = field(init=False)

    def __post_init__(self) -> None:
        self.budgets = FakeBudgetLedger(self.ledger.log)
        self.step = Budgets(self.budgets, lambda: 0.5, lambda policy, number: self.unapplied.append((policy, number)))

    def charging(self, policy: Policy | None = None) -> Pipeline:
        return replace(self.pipeline(budgeted() if policy is None else policy), charge_budgets=self.step)


@pytest.fixture
def fakes() -> BudgetFakes:
    return BudgetFakes()


def test_budgets_are_charged_after_the_claim_and_before_publishing(fakes: BudgetFakes) -> None:
    handle(fakes.charging(), rejected(message_id=b"m-1"), rejected(message_id=b"m-2"))
    assert fakes.ledger.log == ["claim", "charge", "publish", "record"]
    (record, _) = fakes.ledger.records
    assert (record.due_ms, record.budget, record.reason) == (NOW + 2_000, None, None)
    assert [(one.round, one.queue, one.slot, one.draw) for one in fakes.budgets.charges] == [
        (1, "orders", 1, 500_000)
    ] * 2
    assert fakes.budgets.charges[0].latest_ms == NOW + LONGEST_DELAY
    assert fakes.budgets.lengths == [1 + AHEAD]


def test_a_policy_without_a_budget_makes_no_statement(fakes: BudgetFakes) -> None:
    handle(fakes.charging(POLICY), rejected(message_id=b"m-1"))
    assert fakes.ledger.log == ["claim", "publish", "record"]
    per_owner = budgeted(budget={"per": "owner", "limit": 5, "every": "1d"})
    handle(fakes.charging(per_owner), rejected(message_id=b"nobody's"))
    assert "charge" not in fakes.ledger.log


async def _unwanted(requests: Sequence[Request], _rules: Rulebook) -> Mapping[int, str]:
    return {one.delivery.tag: "inactive" for one in requests}


def test_what_is_not_scheduled_is_not_charged(fakes: BudgetFakes) -> None:
    final = budgeted(errors=[{"class": "final"}])
    handle(fakes.charging(final), rejected(message_id=b"m-1"))
    fakes.unreachable = {"orders": "there is no such queue"}
    handle(fakes.charging(), rejected(message_id=b"m-2"))
    asking = budgeted(eligibility={"url": "http://h/", "key": "device_id"})
    handle(replace(fakes.charging(asking), ask_eligibility=_unwanted), rejected(message_id=b"m-3"))
    assert "charge" not in fakes.ledger.log
    assert [one.state for one in fakes.ledger.records] == [State.IN_REVIEW, State.IN_REVIEW, State.SKIPPED]


def test_a_deferred_retry_is_due_in_the_period_that_is_charged(fakes: BudgetFakes) -> None:
    fakes.budgets.due_ms = TOMORROW + 777
    result = handle(fakes.charging(), rejected(message_id=b"m-1"))
    (record,) = fakes.ledger.records
    assert record.due_ms is not None
    assert TOMORROW + 777 <= record.due_ms < TOMORROW + 777 + 125
    assert (record.due_ms, record.deferred_from_ms) == (NOW + (record.delay_ms or 0), NOW + 2_000)
    assert record.budget == "5 retries per queue and day (UTC)"
    assert record.reason == f"deferred from 2023-11-14 22:13:22 UTC: {OVER}"
    assert header(fakes.published[0], "tarry-due-ms").integer() == record.due_ms
    (line,) = actions(result, Names(), Ladder())
    assert (line["event"], line["deferred_from_ms"]) == ("scheduled", NOW + 2_000)
    metrics = Metrics()
    metrics.count(result)
    assert metrics.registry.get_sample_value("tarry_budget_total", {"policy": "plain", "outcome": "defer"}) == 1


def test_a_retry_charged_before_a_crash_keeps_its_due_time_if_it_is_ahead(fakes: BudgetFakes) -> None:
    fakes.budgets.due_ms = NOW + 1_000
    handle(fakes.charging(), rejected(message_id=b"m-1"))
    assert [one.due_ms for one in fakes.ledger.records] == [NOW + 1_000]
    assert [one.now_ms for one in fakes.budgets.charges] == [NOW], "otherwise it is charged anew"


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (ChargeOutcome.REVIEW, State.IN_REVIEW, OVER),
        (ChargeOutcome.SKIP, State.SKIPPED, OVER),
        (ChargeOutcome.BEYOND, State.IN_REVIEW, f"{OVER}, which has no room for it within a year"),
        (
            ChargeOutcome.LATE,
            State.IN_REVIEW,
            f"exhausted: {OVER}, which has room again only later than 1h after its first failure",
        ),
    ],
)
def test_a_retry_without_room_ends_as_its_budget_says(
    fakes: BudgetFakes, outcome: ChargeOutcome, state: State, reason: str
) -> None:
    fakes.budgets.outcome = outcome
    result = handle(fakes.charging(budgeted(max_age="1h")), rejected(message_id=b"m-1"))
    (record,) = fakes.ledger.records
    assert (record.state, record.reason, record.due_ms) == (state, reason, None)
    assert list(result.acked) == [1]
    assert len(fakes.published) == (state is State.IN_REVIEW)
    metrics = Metrics()
    metrics.count(result)
    became = "skip" if state is State.SKIPPED else "review"
    assert metrics.registry.get_sample_value("tarry_budget_total", {"policy": "plain", "outcome": became}) == 1


def test_a_whole_year_is_searched_if_no_slot_ahead_has_room(fakes: BudgetFakes) -> None:
    fakes.budgets.outcome = ChargeOutcome.MORE
    handle(fakes.charging(), rejected(message_id=b"m-1"))
    near, far = fakes.budgets.lengths
    assert near == 1 + AHEAD
    assert 365 <= far <= 368


def test_a_year_is_searched_for_some_owners_at_a_time(fakes: BudgetFakes) -> None:
    """A statement that takes longer than four seconds counts as an outage of Postgres."""
    fakes.budgets.outcome = ChargeOutcome.MORE
    queues = [f"q-{number}" for number in range(SEARCHED_AT_ONCE + 1)]
    result = handle(fakes.charging(), *(rejected(queue, message_id=queue.encode()) for queue in queues * 2))
    assert len(fakes.budgets.lengths) == 3
    assert len(result.acked) == len(queues)


def test_the_latest_due_time_follows_from_the_most_age(fakes: BudgetFakes) -> None:
    handle(fakes.charging(budgeted(max_age="1d")), rejected(message_id=b"m-1"))
    assert fakes.budgets.charges[0].latest_ms == NOW + DAY


def test_without_postgres_budgets_are_not_applied_and_that_is_said(fakes: BudgetFakes) -> None:
    fakes.budgets.outcome = None
    rules = fakes.charging().rules
    assert fakes.step.troubles(rules) == []
    with capture_logs() as logs:
        handle(fakes.charging(), rejected(message_id=b"m-1"))
        handle(fakes.charging(), rejected(message_id=b"m-2"))
        fakes.budgets.outcome = ChargeOutcome.CHARGED
        handle(fakes.charging(), rejected(message_id=b"m-3"))
    assert [one["event"] for one in logs] == ["budgets are not applied", "budgets are applied again"]
    assert fakes.unapplied == [("plain", 1), ("plain", 1)]
    assert [one.due_ms for one in fakes.ledger.records] == [NOW + 2_000] * 3
    fakes.budgets.trouble = AuditUnavailableError("gone")
    (said,) = fakes.step.troubles(rules)
    assert said == "budgets are not applied while Postgres is unavailable: retries of plain are scheduled without them"
    assert fakes.step.troubles(Rulebook((POLICY,), Ladder(), frozenset())) == []


def test_a_limited_owner_is_exhausted_earlier(fakes: BudgetFakes) -> None:
    pipeline = replace(fakes.pipeline(), caps=lambda: Caps({("acme", None): 0}))
    handle(pipeline, published({"original_queue": "orders", "owner": "acme"}, message_id=b"m-1"))
    (record,) = fakes.ledger.records
    assert (record.state, record.reason) == (State.IN_REVIEW, "exhausted: 0 of 0 retries spent")

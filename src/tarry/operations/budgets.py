"""Budgets: what is used of them, and the exceptions of owners, which operators set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from tarry.contract.header_reader import LONGEST_OWNER
from tarry.core.budgets import MOST, NO_CAPS, Budget, Caps, Every, Per
from tarry.core.json_types import DOCUMENTED
from tarry.core.policy import Policy
from tarry.errors import AuditError, NotFoundError, SettingsError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.store.database import PostgresPool, Row
from tarry.tasks import sleep_unless
from tarry.topology.model import Topology

EVERY = 1.0
"""Seconds between two reads of the owners' caps."""

FIELDS = {"hourly": Every.HOUR, "daily": Every.DAY, "monthly": Every.MONTH}


@dataclass(frozen=True, slots=True)
class OwnerLimit:
    """The exception of an owner."""

    __pydantic_config__ = DOCUMENTED

    owner: str
    policy: str | None
    """null: for all policies for which the owner has no exception of its own."""
    hourly: int | None
    """In place of the limit of budgets per owner and hour; null: none."""
    daily: int | None
    monthly: int | None
    max_retries: int | None
    """The most retries of each message, if the policy or the request allows more; null: none."""
    actor: str
    reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What is used of one budget by one owner, in one queue, or in a policy."""

    __pydantic_config__ = DOCUMENTED

    policy: str
    per: str
    """`owner`, `queue` or `policy`."""
    subject: str
    """The owner or the queue; empty for a budget per policy."""
    every: str
    """`1h`, `1d` or `1mo`."""
    unit: str
    over: str
    zone: str
    used: int
    limit: int
    """With the exception of the owner, if there is one."""
    period_begins: datetime
    period_ends: datetime
    """When the next period begins."""
    used_in_next: int
    used_later: int
    """In the next period and all after it: what was deferred, and what comes due then."""


@dataclass(frozen=True, slots=True)
class BudgetList:
    """Exceptions, and what is used now, the most used first."""

    __pydantic_config__ = DOCUMENTED

    exceptions: list[OwnerLimit]
    uses: list[BudgetUse]


@dataclass(frozen=True, slots=True)
class OwnerLimitChanged:
    """The result of setting or removing an exception."""

    __pydantic_config__ = DOCUMENTED

    exception: OwnerLimit
    """As it is now; if it was removed, as it was."""
    without_effect: list[str]
    """Limits for which no policy has a budget per owner."""
    action_id: str


async def set_budget(
    context: OperatorContext,
    owner: str,
    *,
    policy: str | None,
    limits: dict[str, int | None],
    actor: str,
    reason: str | None,
) -> OwnerLimitChanged:
    """Sets the limits that are given (`hourly`, `daily`, `monthly`, `max_retries`), and keeps the others."""
    if not owner or len(owner) > LONGEST_OWNER or "\x00" in owner:
        raise SettingsError(f"No message has this owner: name one, with at most {LONGEST_OWNER} characters and no NUL.")
    if any(limit is not None and not 0 <= limit <= MOST for limit in limits.values()):
        raise SettingsError(f"Limits go from 0 to {MOST:,}.")
    if all(limit is None for limit in limits.values()):
        raise SettingsError("Nothing to set: give --hourly, --daily, --monthly or --max-retries.")
    without_effect = list(_without_effect(context.topology, policy, limits))
    detail = {"policy": policy, **limits, "reason": reason}
    async with recorded(context.store, kind="set_budget", target=owner, actor=actor, detail=detail) as action:
        row = await context.store.one(
            "set_owner_limit", owner=owner, policy=policy, **limits, actor=actor, reason=reason
        )
        answer = OwnerLimitChanged(OwnerLimit(*(row or ())), without_effect, action.id)
        action.outcome = asdict(answer)
    return answer


async def unset_budget(
    context: OperatorContext, owner: str, *, policy: str | None, actor: str, reason: str | None
) -> OwnerLimitChanged:
    """Removes an exception: the limits of the policies apply again."""
    detail = {"policy": policy, "reason": reason}
    async with recorded(context.store, kind="unset_budget", target=owner, actor=actor, detail=detail) as action:
        row = await context.store.one("unset_owner_limit", owner=owner, policy=policy)
        if row is None:
            where = f" for policy {policy!r}" if policy else ""
            raise NotFoundError(f"{owner!r} has no exception{where}: see `tarry budget list`.")
        answer = OwnerLimitChanged(OwnerLimit(*row), [], action.id)
        action.outcome = asdict(answer)
    return answer


async def list_budgets(
    context: OperatorContext, *, owner: str | None = None, policy: str | None = None, limit: int = 50
) -> BudgetList:
    """Of one owner or all, and of one policy or all."""
    rows = await context.store.rows("owner_limits", owner=owner, limit=limit)
    found = [OwnerLimit(*row) for row in rows]
    chosen = [one for one in _policies(context.topology, policy) if one.budgets]
    uses = await read_uses(context.store, chosen, owner, limit=limit)
    return BudgetList([one for one in found if policy is None or one.policy in (None, policy)], uses)


async def read_uses(
    store: PostgresPool, policies: list[Policy], owner: str | None = None, *, limit: int = 50
) -> list[BudgetUse]:
    """What is used of the budgets of these policies; with an owner, only of those per owner."""
    now = round(datetime.now(UTC).timestamp() * 1000)
    budgets = {
        budget.key(policy.name): (policy, budget)
        for policy in policies
        for budget in policy.budgets
        if owner is None or budget.per is Per.OWNER
    }
    periods = {key: budget.period(now) for key, (_, budget) in budgets.items()}
    rows = await store.rows(
        "budget_uses",
        budgets=list(budgets),
        policies=[policy.name for policy, _ in budgets.values()],
        owners=[budget.per is Per.OWNER for _, budget in budgets.values()],
        everys=[budget.every.value for _, budget in budgets.values()],
        limits=[budget.limit for _, budget in budgets.values()],
        starts_ms=[period.starts for period in periods.values()],
        next_ms=[period.ends for period in periods.values()],
        subject=owner,
        limit=limit,
    )
    return [_use(budgets[row[0]], now, row) for row in rows]


def _use(of: tuple[Policy, Budget], now: int, row: Row) -> BudgetUse:
    (policy, budget), (_, subject, used, following, later, most) = of, row
    period = budget.period(now)
    return BudgetUse(
        policy=policy.name,
        per=budget.per.value,
        subject=subject,
        every=budget.every.value,
        unit=budget.unit.value,
        over=budget.over.value,
        zone=budget.zone,
        used=used,
        limit=most,
        period_begins=datetime.fromtimestamp(period.starts / 1000, UTC),
        period_ends=datetime.fromtimestamp(period.ends / 1000, UTC),
        used_in_next=following,
        used_later=later,
    )


def _policies(topology: Topology, name: str | None) -> list[Policy]:
    found = [one for one in topology.rules.policies if name is None or one.name == name]
    if name is not None and not found:
        known = ", ".join(one.name for one in topology.rules.policies)
        raise NotFoundError(f"There is no policy {name!r}. Known: {known}.")
    return found


def _without_effect(topology: Topology, policy: str | None, limits: dict[str, int | None]) -> Iterator[str]:
    budgets = [one for found in _policies(topology, policy) for one in found.budgets if one.per is Per.OWNER]
    for field, every in FIELDS.items():
        if limits.get(field) is not None and not any(one.every is every for one in budgets):
            which = f"policy {policy!r}" if policy else "no policy"
            has = "has no budget" if policy else "has a budget"
            yield f"--{field}: {which} {has} per owner and {every.word}"


async def read_caps(store: PostgresPool) -> Caps:
    return Caps({(owner, policy): most for owner, policy, most in await store.rows("owner_caps")})


async def run(
    context: OperatorContext, stop: asyncio.Event, use: Callable[[Caps], None], *, every: float = EVERY
) -> None:
    """Every service runs it: `use` gets the most retries of owners. While Postgres is unavailable, the last known ones
    apply.
    """
    last: Row | None = None
    while not stop.is_set():
        with suppress(AuditError):
            version = await context.store.one("owner_caps_version")
            if version != last:
                use(await read_caps(context.store))
            last = version
        await sleep_unless(stop, every)


@dataclass(slots=True)
class CurrentCaps:
    """The most retries of owners, as they were read last."""

    caps: Caps = NO_CAPS

    def use(self, caps: Caps) -> None:
        self.caps = caps

    def __call__(self) -> Caps:
        return self.caps

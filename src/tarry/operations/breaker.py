"""Circuit breakers: the list, and what operators can do. The rules are in `core.breaker`; the service applies them.

A breaker holds its destination with a pause of its own. Operators' pauses are not changed by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from tarry.core.breaker import Breaker, BreakerState, Move, ReturnCounts, StoredBreaker, rule_of
from tarry.core.json_types import DOCUMENTED
from tarry.core.names import Destination, is_gate_key
from tarry.errors import ControlError, NotFoundError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import (
    bound_on_broker,
    can_be_held,
    matching,
    matching_destinations,
    seen_in_store,
)
from tarry.operations.paused_destination import (
    RELEASE_RATE,
    PausedDestination,
    assert_pause,
    read_paused_destinations,
    store_pause,
)
from tarry.store.database import PostgresSession, Row
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly

log = structlog.get_logger()

KINDS = {
    BreakerState.OPEN: "breaker_opened",
    BreakerState.HALF_OPEN: "breaker_half_opened",
    BreakerState.CLOSING: "breaker_closing",
    BreakerState.CLOSED: "breaker_closed",
}
"""The kinds of the actions in the action log."""

LOCK = 7_312_017
"""The first part of the advisory lock of a breaker. Other versions of tarry use the same number: never change it."""

AUTOMATIC = "breaker_automatic"

WAITS_FOR_A_MESSAGE = "it waits for a message to return, as a probe"


@dataclass(frozen=True, slots=True)
class PolicyBreaker:
    """The breaker that applies to a queue, and the policy that it is from."""

    policy: str
    rule: Breaker


class Forced(NamedTuple):
    """Who keeps a breaker open or closed, why, and for how long."""

    by: str
    reason: str | None
    lasts: timedelta | None = None


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A breaker that has been open, as it is stored."""

    destination: str
    state: BreakerState
    since: datetime
    wait: timedelta | None
    probe_at: datetime | None
    step_at: datetime | None
    policy: str | None
    reason: str
    pause_id: str | None
    forced_by: str | None
    forced_reason: str | None
    forced_until: datetime | None

    @property
    def standing(self) -> StoredBreaker:
        forced = self.forced_by is not None
        return StoredBreaker(self.state, self.since, self.wait, self.probe_at, self.step_at, forced, self.forced_until)


@dataclass(frozen=True, slots=True)
class BreakerView:
    """The breaker of one queue."""

    __pydantic_config__ = DOCUMENTED

    queue: str
    state: BreakerState
    """`closed`, `open`, `half_open` (one message returns, as a probe) or `closing` (the rest returns, at a rate that
    doubles)."""
    since: datetime | None
    """null if it was never open."""
    returned: int
    """Returns within the time that it counts, and since it came into this state."""
    failed: int
    """Those that failed again in the same time."""
    share: float
    """`failed` of the returns: 0 to 1."""
    probe_at: datetime | None
    """While it is open: when it becomes half-open. null: not by itself."""
    wait_s: float | None
    """How long it is open, or was open last."""
    policy: str | None
    """The policy that it is from; null if no policy of the queue has a breaker any more."""
    rule: str
    """When it opens."""
    reason: str
    """Why it is in this state; empty if it was never open."""
    forced_by: str | None
    """Who keeps it open or closed; null if it is automatic."""
    forced_reason: str | None
    forced_until: datetime | None
    """Until when it is kept open."""
    rate: int | None
    """While it is closing: messages per second."""
    problem: str | None
    """What it waits for."""


def breaker_of(label: str, files: Topology | NamesOnly) -> PolicyBreaker | None:
    """Of the policies that can apply to a queue, the first with a breaker decides for all its messages."""
    destination = Destination.of_label(label)
    if not isinstance(files, Topology) or destination.kind != "queue" or not can_be_held(label):
        return None
    policies = files.rules.policies_of_queue(destination.name)
    rule = rule_of(policy.breaker for policy in policies)
    return next((PolicyBreaker(one.name, rule) for one in policies if rule and one.breaker is rule), None)


async def read_breakers(context: OperatorContext) -> dict[str, BreakerRow]:
    rows = [_row(row) for row in await context.store.rows("breakers")]
    return {row.destination: row for row in rows}


def _row(row: Sequence[object]) -> BreakerRow:
    destination, state, *rest = row
    return BreakerRow(str(destination), BreakerState(str(state)), *rest)  # type: ignore[arg-type] # as in the query


async def read_counts(
    context: OperatorContext, wanted: Mapping[str, Breaker], rows: Mapping[str, BreakerRow]
) -> tuple[dict[str, ReturnCounts], datetime | None]:
    """What is counted for these destinations, and the time of Postgres; None if nothing was asked."""
    found = await context.store.rows(
        "breaker_counts",
        destinations=list(wanted),
        within=[rule.window for rule in wanted.values()],
        since=[rows[label].since if label in rows else None for label in wanted],
    )
    return {row[0]: ReturnCounts(int(row[1]), int(row[2])) for row in found}, found[0][3] if found else None


async def list_breakers(context: OperatorContext) -> list[BreakerView]:
    """The breakers of all known queues."""
    rows = await read_breakers(context)
    known = await seen_in_store(context) | (await bound_on_broker(context) or set()) | set(rows)
    return await _views(context, sorted(known), rows)


async def show_breaker(context: OperatorContext, queue: str) -> BreakerView:
    [found] = await _views(context, [queue], await read_breakers(context))
    return found


async def _views(context: OperatorContext, labels: Sequence[str], rows: Mapping[str, BreakerRow]) -> list[BreakerView]:
    found = {label: rule for label in labels if (rule := breaker_of(label, context.files)) is not None}
    counts, _ = await read_counts(context, {label: one.rule for label, one in found.items()}, rows)
    paused = {one.label: one for one in await read_paused_destinations(context)}
    shown = [label for label in labels if label in found or label in rows]
    return [_view(label, found.get(label), rows.get(label), counts.get(label), paused.get(label)) for label in shown]


def _view(
    label: str,
    policy: PolicyBreaker | None,
    row: BreakerRow | None,
    counts: ReturnCounts | None,
    paused: PausedDestination | None,
) -> BreakerView:
    seen, state = counts or ReturnCounts(), row.state if row else BreakerState.CLOSED
    return BreakerView(
        queue=label,
        state=state,
        since=row.since if row else None,
        returned=seen.returned,
        failed=seen.failed,
        share=seen.share,
        probe_at=row.probe_at if row else None,
        wait_s=row.wait.total_seconds() if row and row.wait else None,
        policy=policy.policy if policy else None,
        rule=policy.rule.describe() if policy else "",
        reason=row.reason if row else "",
        forced_by=row.forced_by if row else None,
        forced_reason=row.forced_reason if row else None,
        forced_until=row.forced_until if row else None,
        rate=paused.effective_rate if paused and state is BreakerState.CLOSING else None,
        problem=_problem(state, paused),
    )


def _problem(state: BreakerState, paused: PausedDestination | None) -> str | None:
    if paused is None or state is BreakerState.CLOSED:
        return None
    waits = state is BreakerState.HALF_OPEN and paused.stage == 0 and not paused.stage_ids
    return paused.problem or (WAITS_FOR_A_MESSAGE if waits else None)


async def open_breaker(
    context: OperatorContext, queue: str, *, actor: str, reason: str | None = None, lasts: timedelta | None = None
) -> BreakerView:
    """Keeps it open until `close_breaker` or `free_breaker`, or for a time; then it becomes half-open."""
    rule = await _require_breaker(context, queue)
    why = f"opened by {actor}"
    detail = {"reason": reason, "lasts_s": lasts.total_seconds() if lasts else None, "forced": True}
    async with recorded(context.store, kind=KINDS[BreakerState.OPEN], target=queue, actor=actor, detail=detail) as it:
        await context.binder.version()  # nothing is stored if the broker is unreachable
        move = Move(BreakerState.OPEN, why, rule.rule.first_wait)
        async with context.store.transaction() as page:
            await lock_destination(page, queue)
            await hold(page, queue, move, rule.policy, actor=actor, forced=Forced(actor, reason, lasts))
        await assert_pause(context, Destination.of_label(queue))
        it.outcome = {"state": str(move.state)}
    return await show_breaker(context, queue)


async def close_breaker(context: OperatorContext, queue: str, *, actor: str, reason: str | None = None) -> BreakerView:
    """Keeps it closed until `open_breaker` or `free_breaker`. The service releases what waits, at the usual rate."""
    rule = await _require_breaker(context, queue)
    detail = {"reason": reason, "forced": True}
    async with recorded(context.store, kind=KINDS[BreakerState.CLOSED], target=queue, actor=actor, detail=detail) as it:
        move = Move(BreakerState.CLOSED, f"closed by {actor}")
        async with context.store.transaction() as page:
            await let_go(page, queue, move, rule.policy, actor=actor, forced=Forced(actor, reason))
        it.outcome = {"state": str(move.state)}
    return await show_breaker(context, queue)


async def free_breaker(context: OperatorContext, queue: str, *, actor: str, reason: str | None = None) -> BreakerView:
    """It opens and closes by itself again. One that is open becomes half-open at once."""
    await _require_breaker(context, queue)
    async with recorded(context.store, kind=AUTOMATIC, target=queue, actor=actor, detail={"reason": reason}):
        await context.store.change("free_breaker", destination=queue)
    return await show_breaker(context, queue)


async def hold(
    page: PostgresSession, label: str, move: Move, policy: str | None, *, actor: str, forced: Forced | None = None
) -> None:
    """Stores that it is open, and that its destination is paused; the caller binds. Its row must be locked."""
    known = await lock_breaker(page, label)
    pause_id = known.pause_id if known else None
    if pause_id is None:
        pause_id, why = str(uuid.uuid4()), (forced.reason if forced else None) or move.reason
        about = {"lasts": None, "rate": None, "canary": False, "observe": None}
        await page.one("begin_pause", id=pause_id, scope="breaker", pattern=label, actor=actor, reason=why, **about)
    await store_pause(page, Destination.of_label(label))
    await set_breaker(page, label, move, policy, pause_id=pause_id, forced=forced)


async def let_go(
    page: PostgresSession, label: str, move: Move, policy: str | None, *, actor: str, forced: Forced | None = None
) -> None:
    """Stores that it is closed. What it held is released, unless a pause holds it as well."""
    paused = await lock_destination(page, label)
    known = await lock_breaker(page, label)
    await set_breaker(page, label, move, policy, pause_id=None, forced=forced)
    if known is None or known.pause_id is None:
        return
    await page.change("end_pauses", ids=[known.pause_id], by=actor)
    if paused is not None and not await is_paused_by_operator(page, label):
        how = {"rate": RELEASE_RATE, "canary": False, "observe": timedelta(0), "by": None, "by_breaker": False}
        await page.rows("release", destinations=[label], state_since=[paused[3]], **how)


async def lock_destination(page: PostgresSession, label: str) -> Row | None:
    """Its paused destination, if it has one. Until the end of the transaction nobody else changes it or its breaker."""
    await page.one("one_change_of_breaker", number=LOCK, destination=label)
    return await page.one("lock_paused", destination=label)


async def lock_breaker(page: PostgresSession, label: str) -> BreakerRow | None:
    row = await page.one("lock_breaker", destination=label)
    return _row(row) if row else None


async def is_paused_by_operator(page: PostgresSession, label: str) -> bool:
    """Whether a pause of an operator holds it as well. A pause is stored before its destinations are."""
    patterns = [row[0] for row in await page.rows("patterns_of_pauses", destination=label)]
    return any(matching(pattern, [label]) for pattern in patterns)


async def set_breaker(
    page: PostgresSession, label: str, move: Move, policy: str | None, *, pause_id: str | None, forced: Forced | None
) -> None:
    await page.change(
        "set_breaker",
        destination=label,
        state=str(move.state),
        wait=move.wait,
        probe_at=move.probe_at,
        policy=policy,
        reason=move.reason,
        pause_id=pause_id,
        forced_by=forced.by if forced else None,
        forced_reason=forced.reason if forced else None,
        lasts=forced.lasts if forced else None,
    )


async def _require_breaker(context: OperatorContext, queue: str) -> PolicyBreaker:
    """The breaker of one queue, which must be known: the name may be mistyped."""
    files = context.topology
    if Destination.of_label(queue).kind != "queue" or is_gate_key(queue):
        raise ControlError(f"{queue!r} has no breaker, only queues have: use `tarry pause` instead.")
    if queue not in await matching_destinations(context, queue):
        raise ControlError(f"{queue!r} is not a queue: name one. `tarry breakers` lists those with a breaker.")
    found = breaker_of(queue, files)
    if found is None:
        raise NotFoundError(
            f"No policy of queue {queue!r} has a breaker: add one to its file, or use `tarry pause` instead."
        )
    return found

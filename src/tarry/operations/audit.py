"""What an operator can do with the audit: compare it with the broker, recover what is missing, or write it off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from tarry.amqp.management import Management
from tarry.audit.recover import ACTOR as RECOVER
from tarry.audit.recover import Recovered, Recovery, recover_reviews, recovery_lock
from tarry.audit.status import AttemptOutcomes, read_balance, read_drift, read_outcomes
from tarry.audit.verdict import AuditVerdict, Missing, Open
from tarry.audit.verify import Auditor, AuditReading, AuditRules
from tarry.core.id_prefix import as_uuid, only, uuid_range
from tarry.core.states import State
from tarry.errors import SettingsError, WrongStateError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.store.database import PostgresSession, SessionSettings
from tarry.store.rows import Balance, Drift
from tarry.tasks import in_thread

WRITE_OFF = "tarry audit write-off"

Progress = Callable[[Literal["retries", "reviews"], int, int], None]
"""Called with what is being published, the number done and the total; 0 and 0 at the beginning."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True, slots=True)
class BalanceReport:
    """The totals of the audit and the drift of returns."""

    balance: Balance
    drift: Drift


@dataclass(frozen=True, slots=True)
class TierTotals:
    """What is in the tiers."""

    on_broker: int
    """Messages."""
    expected: int
    """Retries that must be among them; the other messages are in flight."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`."""

    ok: bool
    """Whether nothing is missing and every queue could be judged."""
    balance: Balance
    tiers: TierTotals
    verdict: AuditVerdict


@dataclass(frozen=True, slots=True)
class RecoverReport:
    """The result of `recover`, or what it would do."""

    done: bool
    """False if it was only asked what would be done."""
    recoverable: int
    """Missing retries that are published again, if their payload was kept."""
    reviews: int
    """Messages in review that are published to the review queue again."""
    tiers: TierTotals
    verdict: AuditVerdict
    recovered: Recovered
    sent_to_review: int = 0


@dataclass(frozen=True, slots=True)
class WriteOffReport:
    """The result of `write_off`, or what it would do."""

    done: bool
    """False if it was only asked what would be done."""
    chosen: list[Missing]
    written_off: list[str]
    """Retry ids. Chosen retries that are not among them have changed in the meantime."""
    verdict: AuditVerdict


async def balance(context: OperatorContext) -> BalanceReport:
    """The totals, from the store alone."""
    async with context.store.dedicated(SessionSettings.REPORT) as session:
        return BalanceReport(await read_balance(session), await read_drift(session))


async def outcomes(context: OperatorContext, within: timedelta, queue: str | None = None) -> list[AttemptOutcomes]:
    """The outcomes of the rounds that returned within this time, by attempt."""
    async with context.store.dedicated(SessionSettings.REPORT) as session:
        return await read_outcomes(session, within, queue)


async def verify(
    context: OperatorContext, rules: AuditRules, *, since: datetime | None = None, queue: str | None = None
) -> VerifyReport:
    """Compare the store with the broker. `since` and `queue` limit the balance only."""
    async with _auditor(context, rules) as auditor:
        reading = await auditor.settled()
        totals = await auditor.balance(since=since, queue=queue)
    proven = not (reading.verdict.lost or reading.verdict.unjudged)
    return VerifyReport(proven, totals, _tiers(reading), reading.verdict)


async def recover(
    context: OperatorContext,
    rules: AuditRules,
    *,
    review: bool = False,
    execute: bool = False,
    actor: str = RECOVER,
    progress: Progress = no_progress,
) -> RecoverReport:
    """Publish missing retries again for the rest of their delay; with `review`, also everything that was in review."""
    async with _auditor(context, rules) as auditor:
        reading = await auditor.settled()
        missing = [one.retry for one in reading.verdict.missing if one.retry.state != State.CLAIMED]
        reviews = await _reviews(auditor, reading) if review else 0
        recovered, sent_to_review = Recovered(), 0
        if execute and (missing or reviews):
            async with (
                recovery_lock(auditor.session),
                recorded(context.store, kind="audit.recover", target="audit", actor=actor) as action,
            ):
                if missing:
                    recovered = await _recover(context, auditor.session, missing, actor, progress)
                if reviews:
                    sent_to_review = await _recover_reviews(context, auditor.session, actor, progress)
                action.outcome = asdict(recovered) | {"sent_to_review": sent_to_review}
    return RecoverReport(
        done=execute,
        recoverable=len(missing),
        reviews=reviews,
        tiers=_tiers(reading),
        verdict=reading.verdict,
        recovered=recovered,
        sent_to_review=sent_to_review,
    )


async def write_off(
    context: OperatorContext,
    rules: AuditRules,
    *,
    retry_ids: Sequence[str] = (),
    reason: str,
    execute: bool = False,
    actor: str = WRITE_OFF,
) -> WriteOffReport:
    """Close missing retries: those with these ids or prefixes, or all that `recover` cannot publish again."""
    if not reason.strip():
        raise SettingsError("--reason is empty: a write-off needs a reason, which is kept in the history.")
    async with _auditor(context, rules) as auditor:
        verdict = (await auditor.settled()).verdict
        chosen = _chosen(verdict.missing, retry_ids)
        rows = [one.retry for one in chosen]
        closed = await _close(context, auditor.session, rows, reason, actor) if execute and chosen else []
    return WriteOffReport(execute, chosen, closed, verdict)


@asynccontextmanager
async def _auditor(context: OperatorContext, rules: AuditRules) -> AsyncIterator[Auditor]:
    async with context.store.dedicated(SessionSettings.REPORT) as session:
        yield Auditor(session, Management(context.address), context.names, rules)


def _tiers(reading: AuditReading) -> TierTotals:
    return TierTotals(reading.in_tiers, sum(reading.snapshot.waiting.values()))


async def _reviews(auditor: Auditor, reading: AuditReading) -> int:
    """How many messages to publish to review again: all that are in review, if the queue is empty. The statistics of
    the management API, which are seconds old, do not show it; but only they count messages that a consumer has.
    """
    queue = auditor.names.review_queue
    depth = reading.depths[queue]
    ready = (await in_thread(lambda: auditor.ready([queue]), "audit review queue")).get(queue, 0)
    if not depth.known or depth.messages or ready:
        raise WrongStateError(
            f"{queue} is not empty ({max(depth.messages, ready)}): publishing everything in review again "
            "would duplicate those. Empty it first, or leave out --review."
        )
    return (await auditor.balance()).in_review


async def _recover(
    context: OperatorContext, session: PostgresSession, missing: Sequence[Open], actor: str, progress: Progress
) -> Recovered:
    progress("retries", 0, 0)
    recovery = Recovery(session, context.topology, context.address, actor, partial(progress, "retries"))
    return await recovery.run(missing)


async def _recover_reviews(context: OperatorContext, session: PostgresSession, actor: str, progress: Progress) -> int:
    progress("reviews", 0, 0)
    return await recover_reviews(session, context.names, context.address, partial(progress, "reviews"), actor=actor)


def _chosen(missing: Sequence[Missing], ids: Sequence[str]) -> list[Missing]:
    """Those that were named, each of which must be missing; or all that cannot be rebuilt."""
    if not ids:
        return [one for one in missing if not can_recover(one.retry)]
    by_id = {one.retry.retry_id: one for one in missing}
    whole = {given: _whole(given, missing) for given in ids}
    if present := [given for given, retry_id in whole.items() if retry_id not in by_id]:
        raise WrongStateError(
            f"Not missing: {', '.join(present)}. `tarry audit verify` lists what is, and `tarry history` says where "
            "these are. Nothing was done."
        )
    return [by_id[retry_id] for retry_id in dict.fromkeys(whole.values())]


def _whole(given: str, missing: Sequence[Missing]) -> str:
    """The missing retry whose id begins so; a complete id as it is."""
    bounds = uuid_range(given)
    if bounds is None:
        return as_uuid(given) or given
    rows = [one.retry for one in missing if bounds.low <= one.retry.retry_id <= bounds.high]
    return only(given, [(one.retry_id, one.queue) for one in rows]) or given


def can_recover(retry: Open) -> bool:
    """Whether `recover` could publish it again: of a claimed one the store has no payload."""
    return retry.rebuildable and retry.state != State.CLAIMED


async def _close(
    context: OperatorContext, session: PostgresSession, rows: Sequence[Open], reason: str, actor: str
) -> list[str]:
    ids, rounds = [row.retry_id for row in rows], [row.round for row in rows]
    detail = {"reason": reason}
    async with (
        recovery_lock(session),
        recorded(context.store, kind="audit.write_off", target="audit", actor=actor, detail=detail) as action,
    ):
        closed = await session.rows("written_off", ids=ids, rounds=rounds, reason=reason, actor=actor)
        action.outcome = {"written_off": [row[0] for row in closed]}
    return [row[0] for row in closed]

"""Retry now: one manual retry for each state in which a person wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

import structlog

from tarry.core.json_types import DOCUMENTED
from tarry.core.states import State
from tarry.errors import AuditError, BrokerError, Code, ConflictError, NotFoundError, TarryError
from tarry.operations import stuck
from tarry.operations.action_log import recorded
from tarry.operations.cancel import (
    Verdict,
    WaitingRetry,
    ask,
    ask_credits,
    carry_out,
    find,
    just_changed,
    not_now,
    returned,
)
from tarry.operations.context import OperatorContext
from tarry.operations.lookup import whole_retry_id
from tarry.operations.review import jobs
from tarry.operations.review.browse import Filter
from tarry.operations.review.jobs import Job, JobSpec
from tarry.operations.review.work import work_or_wait
from tarry.operations.stuck import StuckAttempt, Wanted

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Retried:
    """The result of a retry-now."""

    __pydantic_config__ = DOCUMENTED

    retry_id: str
    message_id: str | None
    queue: str
    """The queue that it returns to."""
    round: int
    """The round that waited, or that was in review."""
    answer: str
    """`retried`, or `pending`: requested, and the outcome is not known yet."""
    previous_state: str
    """`scheduled`, `held`, `in_review`, or `stuck`: returned, and its attempt hangs."""
    state: str | None
    """Its state now: `scheduled` until the tap has recorded its return; null if Postgres did not answer."""
    position: int | None
    """An estimate: messages that were ready in its queue when it was sent; null if the broker did not tell."""
    job_id: str | None
    """The job that redrives it, if it was in review."""
    action_id: str


@dataclass(slots=True)
class ManualRetry:
    """One retry-now in progress."""

    context: OperatorContext
    retry: WaitingRetry
    actor: str
    reason: str | None
    position: int | None = None
    job_id: str | None = None

    async def measure(self) -> None:
        """Reads the position, just before the message is sent. Without it, the retry goes on."""
        try:
            self.position = await self.context.binder.depth(self.retry.queue)
        except BrokerError as error:
            log.info("position not read", queue=self.retry.queue, reason=str(error))


async def retry_now(context: OperatorContext, called: str, *, actor: str, reason: str | None = None) -> Retried:
    """Sends the message to its queue now, from where it is.

    Raises a ControlError with the reason if its state does not allow that, or if the credit check refuses it.
    """
    called = await whole_retry_id(context.store, called)
    async with recorded(
        context.store, kind="retry_now", target=called, actor=actor, detail={"reason": reason}
    ) as action:
        try:
            retry = await find(context, called, "retry_now", BY_STATE)
        except ConflictError as refusal:
            hung = await stuck.find_one(context, called) if refusal.code is Code.ALREADY_RETURNED else None
            if hung is None:
                raise
            answer = await _recover(context, hung, actor, reason)
            action.outcome = asdict(answer)
            return answer
        manual = ManualRetry(context, retry, actor, reason)
        await _check(manual)
        verdict = await BY_STATE[manual.retry.state](manual)
        answer = Retried(
            manual.retry.retry_id,
            manual.retry.message_id,
            manual.retry.queue,
            manual.retry.round,
            verdict,
            manual.retry.state,
            await _state(manual),
            manual.position,
            manual.job_id,
            action.id,
        )
        action.outcome = asdict(answer)
    return answer


async def _check(manual: ManualRetry) -> None:
    retry = manual.retry
    await ask_credits(manual.context, retry, retry.state, manual.actor, manual.reason)


async def _recover(context: OperatorContext, hung: StuckAttempt, actor: str, reason: str | None) -> Retried:
    """Recovers a stuck attempt: a consumer has the message, and it may be delivered a second time."""
    row = await context.store.one("retries_to_divert", id=hung.retry_id, called=None)
    problem = None if row is None else not_now(WaitingRetry(*row), f"Retry {hung.retry_id} (queue {hung.queue})")
    if problem is not None:
        raise problem
    stuck.check_time(hung)
    await ask_credits(context, hung, "stuck", actor, reason)
    done = await stuck.recover(context, Wanted(ids=(hung.retry_id,), reason=reason), actor=actor)
    [recovered] = done.recovered
    verdict = "retried" if recovered.confirmed else "pending"
    state = State.SCHEDULED.value
    return Retried(
        *(hung.retry_id, hung.message_id, hung.queue, hung.round, verdict, "stuck", state),
        position=None,
        job_id=None,
        action_id=recovered.action_id,
    )


async def _state(manual: ManualRetry) -> str | None:
    """The state as stored. The message is sent by now, so the answer must not fail."""
    try:
        row = await manual.context.store.one("review_known", ids=[manual.retry.retry_id])
    except AuditError:
        return None
    return str(row[2]) if row else None


async def _send_waiting(manual: ManualRetry) -> Verdict:
    """Sends a copy now, and diverts the waiting message when it comes due: only one of the two returns."""
    diversion = await ask(manual.context, manual.retry, "retry_now", manual.actor, manual.reason)
    verdict = await carry_out(manual.context, diversion, manual.measure)
    if verdict == "returned":
        raise returned(manual.retry)
    return verdict


async def _redrive(manual: ManualRetry) -> Verdict:
    """Redrives the message with a review job of its own.

    Once the job exists, an error does not end it: the service resumes it, so the answer is `pending`.
    """
    context, retry = manual.context, manual.retry
    spec = JobSpec("redrive", Filter(queue=retry.queue, ids=(retry.retry_id,)), reason=manual.reason)
    try:
        job = await jobs.create(context, spec, actor=manual.actor, here=True)
    except NotFoundError:
        raise just_changed(retry.retry_id) from None
    manual.job_id = job.id
    await manual.measure()
    try:
        job = await work_or_wait(context, job.id, runner=manual.actor, stop=asyncio.Event())
    except (TarryError, OSError) as error:
        log.warning("no answer yet", kind="retry_now", retry_id=retry.retry_id, job=job.id, reason=str(error))
        return "pending"
    return await _outcome(manual, job)


async def _outcome(manual: ManualRetry, job: Job) -> Verdict:
    if job.done:
        return "retried"
    if job.unconfirmed or job.left:
        return "pending"
    [problem] = await jobs.problems(manual.context, job.id, limit=1)
    code = Code.CANNOT_REDRIVE if problem.state == "failed" else Code.BEING_PROCESSED
    raise ConflictError(f"Retry {manual.retry.retry_id} was not redriven from review: {problem.problem}.", code)


BY_STATE: Mapping[str, Callable[[ManualRetry], Awaitable[Verdict]]] = {
    State.SCHEDULED: _send_waiting,
    State.HELD: _send_waiting,
    State.IN_REVIEW: _redrive,
}
"""How a retry is sent now, by its state; in any other state it is refused."""

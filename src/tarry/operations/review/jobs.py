"""Jobs on many messages: create, list, stop, resume and abandon them.

Messages in review are redriven or discarded; retries that wait are cancelled, or sent now.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from tarry.contract.checks import check_origin
from tarry.contract.header_reader import RefusalError
from tarry.contract.message import Acceptance, Origin
from tarry.core.id_prefix import RULE, as_uuid
from tarry.core.json_types import DOCUMENTED
from tarry.core.ladder import itinerary
from tarry.core.states import State
from tarry.errors import ConflictError, NotFoundError, SettingsError, WrongStateError
from tarry.operations import lookup
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.operations.lookup import RetryFilter, whole_job_id
from tarry.operations.review.browse import Filter, completed
from tarry.operations.review.redrive import Edits, RedriveOptions, checked
from tarry.store.database import PostgresSession, Row
from tarry.topology.partial import whole

Kind = Literal["redrive", "discard", "cancel", "retry_now"]
DIVERTING: frozenset[str] = frozenset({"cancel", "retry_now"})
"""What is done to retries that wait, and not to messages in review."""
MOST = 1_000_000
"""The largest number of messages in one job."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job is to do, and to which messages."""

    kind: Kind
    chosen: Filter = field(default_factory=Filter)
    """Which messages in review, unless `retries` is set."""
    options: RedriveOptions = field(default_factory=RedriveOptions)
    rate: float | None = None
    """Messages a second; None means no limit."""
    reason: str | None = None
    """Why; required for a discard and a cancel."""
    limit: int = MOST
    retries: RetryFilter | None = None
    """Which retries: those of them that are in a state in which this can be done to them."""
    watch: timedelta | None = None
    """If set, the job grows: it processes 1 message, then 10, then 100 and so on. After each batch it watches for this
    long, and it stops if more than a tenth failed."""
    prepared: bool = False
    """The selection is frozen and counted, and nothing is done until the job is resumed."""
    expected: int | None = None
    """How many messages the operator saw. If more match by now, the job is only prepared."""

    def conditions(self) -> dict[str, Any]:
        return self.chosen.conditions() if self.retries is None else self.retries.conditions()


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its progress, as stored."""

    id: str
    kind: Kind
    actor: str
    created_at: datetime
    filter: dict[str, Any]
    options: dict[str, Any]
    edits_body: bool
    rate: float | None
    reason: str | None
    total: int
    wanted: str
    runner: str | None
    is_seen: bool
    started_at: datetime | None
    run_since: datetime | None
    run_settled: int
    runs: int
    problem: str | None
    finished_at: datetime | None
    now: datetime
    waiting: int
    sending: int
    done: int
    gone: int
    """No longer in the queue: another consumer took them."""
    failed: int
    unconfirmed: int
    """Unconfirmed: the job was interrupted between publish and record, and it is not known whether they arrived."""
    skipped: int
    """No longer in review when the job reached them, or not yet processed when the job was abandoned."""

    @property
    def left(self) -> int:
        return self.waiting + self.sending

    @property
    def state(self) -> str:
        """A `ready` job waits for a worker; the service picks it up if it is running. Of a `prepared` one, nothing was
        done yet.
        """
        if self.finished_at is not None:
            return "done"
        if self.wanted == "stop" and not self.runs:
            return "prepared"
        if self.runner is not None and self.is_seen:
            return "running" if self.wanted == "run" else "stopping"
        return "ready" if self.wanted == "run" else "stopped"

    @property
    def speed(self) -> float | None:
        """Messages a second, in the current run."""
        if self.run_since is None or self.state != "running":
            return None
        elapsed = (self.now - self.run_since).total_seconds()
        settled = self.total - self.left - self.run_settled
        return settled / elapsed if elapsed > 0 and settled > 0 else None

    @property
    def eta(self) -> timedelta | None:
        """The time until the job is done, at the current speed."""
        speed = self.speed or (self.rate if self.state == "running" else None)
        return timedelta(seconds=self.left / speed) if speed and self.left else None

    def status(self) -> JobStatus:
        """The job as it is reported to clients."""
        eta, speed = self.eta, self.speed
        same = {
            one.name: getattr(self, one.name) for one in fields(JobStatus) if one.name not in ("speed", "eta_seconds")
        }
        seconds = round(eta.total_seconds(), 1) if eta else None
        return JobStatus(**same, speed=round(speed, 1) if speed else None, eta_seconds=seconds)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as it is reported to clients."""

    __pydantic_config__ = DOCUMENTED

    id: str
    kind: str
    actor: str
    state: str
    """prepared, ready, running, stopping, stopped or done."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    filter: dict[str, Any]
    options: dict[str, Any]
    rate: float | None
    reason: str | None
    runner: str | None
    runs: int
    total: int
    left: int
    done: int
    gone: int
    failed: int
    skipped: int
    unconfirmed: int
    speed: float | None
    """Messages a second, in the current run."""
    eta_seconds: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A message that the job did not process as requested."""

    retry_id: str
    round: int
    state: str
    problem: str | None


PREPARED_FOR = timedelta(hours=1)
"""A job that was prepared and not started for this long is ended, so that its messages are free for others."""

SHORTEST_WATCH, LONGEST_WATCH = timedelta(seconds=1), timedelta(hours=1)

SLOWEST = 0.01
"""The lowest rate, in messages a second.

A message stays unacknowledged while it waits for its turn, and the broker takes it back after half an hour.
"""

FASTEST = 10_000.0


async def create(context: OperatorContext, order: JobSpec, *, actor: str, here: bool = False) -> Job:
    """Freezes the selection. Nothing is sent yet: `work` does that in the service, or in this process with `here`."""
    _check(context, order)
    order = await _completed(context, order)
    job_id = str(uuid.uuid4())
    detail = {
        "filter": order.conditions(),
        "options": _plain_options(order),
        "rate": order.rate,
        "reason": order.reason,
    }
    about = "review" if order.retries is None else "retries"
    async with recorded(
        context.store, kind=f"{about}.{order.kind}", target=job_id, actor=actor, detail=detail
    ) as action:
        async with context.store.transaction() as page:
            await page.rows("review_patience")
            await page.rows("review_end_prepared", within=PREPARED_FOR)
            await page.rows(
                "review_new_job",
                job=job_id,
                kind=order.kind,
                actor=actor,
                filter=json.dumps(order.conditions()),
                options=json.dumps(_plain_options(order)),
                body=order.options.edits.body,
                rate=order.rate,
                why=order.reason,
                wanted="stop" if order.prepared else "run",
                here=here,
            )
            frozen = await _freeze(page, job_id, order)
            chosen, taken = frozen or (0, 0)
            if not taken:
                await page.rows("review_drop_job", job=job_id)
            elif order.expected is not None and chosen > order.expected:
                await page.rows("review_only_prepare", job=job_id, problem=_grown(order.expected, chosen))
        action.outcome = {"chosen": chosen, "taken": taken}
        if not chosen:
            raise NotFoundError(
                "Nothing in review matches: see `tarry review list` for what there is."
                if order.retries is None
                else f"No retry matches that is {' or '.join(sorted(_states(order, order.retries)))}."
            )
        if not taken:
            raise ConflictError(f"All {chosen:,} matching messages belong to another job: see `tarry review jobs`.")
    return await get(context, job_id)


def _grown(expected: int, chosen: int) -> str:
    return f"{expected:,} matched when this was asked for, and {chosen:,} match now."


async def _completed(context: OperatorContext, order: JobSpec) -> JobSpec:
    """With whole fingerprints in place of prefixes."""
    if order.retries is None:
        return replace(order, chosen=await completed(context, order.chosen))
    return replace(order, retries=await lookup.completed(context.store, order.retries))


async def _freeze(page: PostgresSession, job_id: str, order: JobSpec) -> Row | None:
    if order.retries is None:
        return await page.one("review_freeze", job=job_id, limit=order.limit, **order.chosen.parameters())
    parameters = order.retries.parameters() | {"states": sorted(_states(order, order.retries))}
    return await page.one("review_freeze_retries", job=job_id, limit=order.limit, **parameters)


def _states(order: JobSpec, wanted: RetryFilter) -> set[str]:
    """The states in which this can be done, and that were asked for."""
    possible = {State.SCHEDULED, State.HELD} if order.kind in DIVERTING else {State.IN_REVIEW}
    return {one.value for one in possible if wanted.states is None or one in wanted.states}


def _check(context: OperatorContext, order: JobSpec) -> None:
    """Validates the job before anything is written."""
    if order.rate is not None and not SLOWEST <= order.rate <= FASTEST:
        raise SettingsError(f"The rate must be from {SLOWEST:g} to {FASTEST:,.0f} a second, not {order.rate:g}.")
    if order.kind in ("discard", "cancel") and not (order.reason or "").strip():
        raise SettingsError(f"A {order.kind} needs a reason, which is kept in the history: --reason '…'.")
    if order.watch is not None and not SHORTEST_WATCH <= order.watch <= LONGEST_WATCH:
        raise SettingsError("Watch each batch for 1 second to 1 hour.")
    if order.watch is not None and order.options.delay_ms:
        raise SettingsError("Growing batches watch what returns at once: use them without --delay.")
    if order.retries is None:
        _check_filter(order)
    if order.kind == "retry_now":
        whole(context.files)
    if order.kind != "redrive":
        return
    checked(order.options.edits)
    itinerary(context.topology.rules.ladder, order.options.delay_ms, context.topology.rules.tiers)
    if order.options.to is not None:
        try:
            check_origin(Origin(order.options.to, "", ""), acceptance(context))
        except RefusalError as refusal:
            raise SettingsError(f"--to: {str(refusal).replace('the origin ', '')}.") from None


def _check_filter(order: JobSpec) -> None:
    if order.kind in DIVERTING:
        raise SettingsError("What is in review does not wait: select retries instead.")
    if order.chosen.is_empty:
        raise SettingsError(
            "Select messages by id or with a filter such as --queue or --fingerprint; --queue '*' selects all."
        )


def acceptance(context: OperatorContext) -> Acceptance:
    return Acceptance(context.names, context.topology.acceptable, context.topology.failures)


def _plain_options(order: JobSpec) -> dict[str, Any]:
    options = order.options
    watch = {} if order.watch is None else {"watch_ms": round(order.watch.total_seconds() * 1000)}
    if order.kind in DIVERTING:
        return watch
    return watch | {
        "reset_attempts": options.reset_attempts,
        "to": options.to,
        "delay_ms": options.delay_ms,
        "set_headers": dict(options.edits.headers),
        "drop_headers": list(options.edits.dropped),
    }


async def options_of(context: OperatorContext, job: Job) -> RedriveOptions:
    """The options the job was created with."""
    options = job.options
    body = await context.store.one("review_job_body", job=job.id) if job.edits_body else None
    edits = Edits(options["set_headers"], tuple(options["drop_headers"]), body[0] if body else None)
    return RedriveOptions(options["reset_attempts"], options["to"], options["delay_ms"], edits)


def watch_of(job: Job) -> timedelta | None:
    """How long the job watches each batch; None if its batches do not grow."""
    found = job.options.get("watch_ms")
    return None if found is None else timedelta(milliseconds=found)


async def get(context: OperatorContext, called: str) -> Job:
    """Finds a job by its id or a prefix of it."""
    job_id = as_uuid(await whole_job_id(context.store, called))
    rows = await context.store.rows("review_jobs", job=job_id, only_open=False, limit=1) if job_id else []
    if not rows:
        raise unknown_job(called)
    return Job(*rows[0])


def unknown_job(called: str) -> NotFoundError:
    return NotFoundError(f"No job has the id {called!r}: see `tarry review jobs`. {RULE}")


async def jobs(context: OperatorContext, *, only_open: bool = False, limit: int = 50) -> list[Job]:
    """Jobs, newest first."""
    return [Job(*row) for row in await context.store.rows("review_jobs", job=None, only_open=only_open, limit=limit)]


async def problems(context: OperatorContext, job_id: str, *, limit: int = 100) -> list[JobProblem]:
    return [JobProblem(*row) for row in await context.store.rows("review_problems", job=job_id, limit=limit)]


async def stop(context: OperatorContext, job_id: str, *, actor: str) -> Job:
    """The worker stops before the next batch. The job can be resumed later."""
    return await _want(context, job_id, "stop", actor)


async def resume(
    context: OperatorContext, job_id: str, *, actor: str, resend_unconfirmed: bool = False, here: bool = False
) -> Job:
    """Resumes a job.

    With `resend_unconfirmed`, unconfirmed messages are treated as not sent. Only an operator can know that.
    """
    job = await get(context, job_id)
    if here and job.kind == "redrive":
        whole(context.files)  # raises before anything is written: policies are needed here
    if resend_unconfirmed and job.kind not in DIVERTING:
        await context.store.rows("review_resend_unconfirmed", job=job.id, actor=actor)
    else:
        await context.store.rows("review_reopen", job=job.id)
    return await _want(context, job.id, "run", actor, here=here)


async def abandon(context: OperatorContext, job_id: str, *, actor: str) -> Job:
    """Abandons a job permanently. Messages that it has not sent stay in review."""
    job = await get(context, job_id)
    async with recorded(context.store, kind="review.abandon", target=job.id, actor=actor):
        await context.store.rows("review_end", job=job.id)
    return await get(context, job.id)


async def _want(context: OperatorContext, job_id: str, wanted: str, actor: str, *, here: bool = False) -> Job:
    job = await get(context, job_id)
    async with recorded(context.store, kind=f"review.{wanted}", target=job.id, actor=actor):
        if not await context.store.rows("review_want", job=job.id, wanted=wanted, here=here):
            raise WrongStateError(
                f"Job {job.id} finished at {job.finished_at:%Y-%m-%d %H:%M:%S}: nothing is left to do."
            )
    return await get(context, job.id)

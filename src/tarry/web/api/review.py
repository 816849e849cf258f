"""The review: groups, lists, single messages, comparison with the queue; and jobs on many messages or retries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tarry.core.id_prefix import as_uuid
from tarry.core.json_types import Base64
from tarry.errors import SettingsError
from tarry.operations.paging import Page
from tarry.operations.review import jobs
from tarry.operations.review.browse import By, Filter, Group, ReviewDetail, ReviewItem, ReviewPayload, Summary
from tarry.operations.review.jobs import JobProblem, JobSpec, JobStatus
from tarry.operations.review.reconcile import Checked
from tarry.operations.review.redrive import Edits, RedriveOptions
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Cursor, Duration, Glob, Limit, Moment, Owner, QueueName, Text, length_of
from tarry.web.api.retries import WhichRetries

router = APIRouter(prefix="/review", tags=["review"])

Queue = Annotated[
    Glob | None, Query(description="The queue they failed in, or a glob; empty for messages without one.")
]
Reason = Annotated[Text | None, Query(description="Part of the reason for the review.")]
Print = Annotated[Text | None, Query(description="The fingerprint of the error, or its prefix.")]
ErrorType = Annotated[Text | None, Query(description="A name or a glob.")]
Before = Annotated[Moment | None, Query(description="In review since before this time; ISO 8601, UTC.")]
After = Annotated[Moment | None, Query(description="In review since this time or later.")]
OwnerQuery = Annotated[Owner | None, Query(description="Whom the messages belong to.")]


def _chosen(
    *,
    queue: Queue = None,
    reason: Reason = None,
    fingerprint: Print = None,
    error_type: ErrorType = None,
    before: Before = None,
    after: After = None,
    owner: OwnerQuery = None,
) -> Filter:
    return Filter(queue, reason, fingerprint, error_type, before, after, owner=owner)


Chosen = Annotated[Filter, Depends(_chosen)]


@router.get("", summary="Number of messages in review")
async def summary(_caller: Looker, operations: Operations, chosen: Chosen) -> Summary:
    """In the audit and in the queue. The numbers can differ: `tarry review check` shows why."""
    return await operations.review_summary(chosen)


@router.get("/groups", summary="Group the messages in review")
async def groups(
    _caller: Looker,
    operations: Operations,
    chosen: Chosen,
    *,
    by: Annotated[By, Query(description="What the messages of a group have in common.")] = "fingerprint",
    limit: Limit = 50,
) -> list[Group]:
    """Largest group first."""
    return await operations.review_groups(by, chosen, limit=limit)


@router.get("/messages", summary="List messages in review")
async def messages(
    _caller: Looker, operations: Operations, chosen: Chosen, *, limit: Limit = 50, cursor: Cursor = None
) -> Page[ReviewItem]:
    """Oldest first, without payloads."""
    return await operations.list_review(chosen, limit=limit, cursor=cursor)


Called = Annotated[
    QueueName, Path(description="A retry id or its prefix; or a message id, if only one message with it is in review.")
]


@router.get("/messages/{called:path}/payload", summary="The payload of a message in review")
async def payload(_caller: Operator, operations: Operations, called: Called) -> ReviewPayload:
    """Needs the role operate. If the payload is not stored, the queue is searched."""
    return await operations.review_payload(called)


@router.get("/messages/{called:path}", summary="One message in review")
async def message(_caller: Looker, operations: Operations, called: Called) -> ReviewDetail:
    return await operations.show_review(called)


class CheckRequest(Requested):
    """Which differences to repair."""

    adopt: bool = Field(False, description="Record messages that only the queue has.")
    close: bool = Field(False, description="Record messages that other consumers have taken as discarded.")
    remove: bool = Field(False, description="Remove messages that interrupted jobs left in the queue.")


@router.post("/check", summary="Compare the queue with the audit")
async def check(
    caller: Operator, operations: Operations, body: Annotated[CheckRequest | None, Body()] = None
) -> Checked:
    """Reads every message and leaves it in the queue. During the check, other consumers find the queue empty."""
    wanted = body or CheckRequest()
    acting = operations.acting_as(_actor(caller, body))
    return await acting.check_review(adopt=wanted.adopt, close=wanted.close, remove=wanted.remove)


class Which(BaseModel):
    """Which messages: those that meet every condition given."""

    model_config = ConfigDict(extra="forbid")

    queue: Glob | None = Field(None, description="A name or a glob; `*` for all, empty for messages without a queue.")
    reason: Text | None = Field(None, description="Part of the reason for the review.")
    fingerprint: Text | None = Field(None, description="The fingerprint of the error, or its prefix.")
    error_type: Text | None = Field(None, description="A name or a glob.")
    before: Moment | None = Field(None, description="In review since before this time.")
    after: Moment | None = None
    owner: Owner | None = Field(None, description="Whom the messages belong to.")
    ids: list[QueueName] | None = Field(
        None,
        max_length=10_000,
        description="Retry ids or their prefixes; or message ids of which only one message is in review.",
    )


class NewJob(Requested):
    """What to do with which messages."""

    kind: jobs.Kind = Field(
        description="redrive and discard: messages in review. cancel and retry_now: retries that wait, with `retries`."
    )
    which: Which = Field(default_factory=lambda: Which.model_validate({}), description="Which messages in review.")
    retries: WhichRetries | None = Field(
        None,
        description="Instead of `which`: retries, of which those are taken to whose state the kind can be applied.",
    )
    reset_attempts: bool = Field(True, description="Set the count of retries and the age to zero, or keep both.")
    to: QueueName | None = Field(None, description="Redrive to this queue instead of the one it failed in.")
    delay_ms: int = Field(0, ge=0, le=10**12, description="Wait this many milliseconds first.")
    rate: float | None = Field(
        None, ge=jobs.SLOWEST, le=jobs.FASTEST, allow_inf_nan=False, description="Messages per second."
    )
    watch: Duration | None = Field(
        None,
        description="Process 1 message, then 10, then 100 and so on. After each batch the job watches for this long, "
        "and stops if more than a tenth failed.",
    )
    prepared: bool = Field(
        default=False, description="Only freeze and count the selection; /resume starts the job. It expires in an hour."
    )
    expected: int | None = Field(
        None, ge=0, description="How many are expected. If more match, the job is only prepared, and says so."
    )
    reason: Text | None = Field(None, description="Required for a discard and a cancel.")
    set_headers: dict[str, str | int | float | bool | None] = Field(default_factory=dict, max_length=100)
    drop_headers: list[str] = Field(default_factory=list, max_length=100)
    edit_body: Base64 | None = Field(None, description="A new payload in base64, for a single message.")

    def spec(self, ids: tuple[str, ...] | None) -> JobSpec:
        if self.edit_body is not None and len(ids or ()) != 1:
            raise SettingsError("edit_body is for one message: name it in which.ids.")
        if self.retries is not None and self.which.model_fields_set:
            raise SettingsError("Give only one of `which` and `retries`.")
        chosen = Filter(**self.which.model_dump(exclude={"ids"}), ids=ids)
        edits = Edits(self.set_headers, tuple(self.drop_headers), self.edit_body)
        return JobSpec(
            self.kind,
            chosen,
            RedriveOptions(self.reset_attempts, self.to, self.delay_ms, edits),
            self.rate,
            self.reason,
            retries=None if self.retries is None else self.retries.filter(),
            watch=None if self.watch is None else length_of(self.watch),
            prepared=self.prepared,
            expected=self.expected,
        )


@router.post("/jobs", summary="Act on many messages or retries", status_code=HTTPStatus.CREATED)
async def create(caller: Operator, operations: Operations, wanted: NewJob) -> JobStatus:
    """The selection is frozen now, and the service runs the job. Messages that another consumer takes meanwhile are
    reported, not duplicated. 409 if another job has all of them.
    """
    given = wanted.which.ids
    # Complete ids need no lookup; those that are not in review are left out of the job.
    ids = None if given is None else [as_uuid(one) or (await operations.review_ids([one]))[0] for one in given]
    spec = wanted.spec(None if ids is None else tuple(ids))
    return await operations.acting_as(caller.actor(wanted.requested_by)).create_job(spec)


@router.get("/jobs", summary="List jobs, newest first")
async def list_jobs(
    _caller: Looker,
    operations: Operations,
    *,
    only_open: Annotated[bool, Query(description="Only jobs that are not done.")] = False,
    limit: Limit = 50,
) -> list[JobStatus]:
    return await operations.list_jobs(only_open=only_open, limit=limit)


JobId = Annotated[QueueName, Path(description="A job id or its prefix.")]


@dataclass(frozen=True)
class JobInFull(JobStatus):
    """With the first hundred messages that were not processed as requested."""

    problems: list[JobProblem]


@router.get("/jobs/{job_id}", summary="One job with its progress and problems")
async def job(_caller: Looker, operations: Operations, job_id: JobId) -> JobInFull:
    found = await operations.show_job(job_id)
    return JobInFull(**asdict(found), problems=await operations.job_problems(found.id))


RequestedBody = Annotated[Requested | None, Body()]


class ResumeRequest(Requested):
    """How to resume."""

    resend_unconfirmed: bool = Field(
        False, description="Treat unconfirmed messages as not sent: some may be delivered twice."
    )


@router.post("/jobs/{job_id}/stop", summary="Stop a job")
async def stop(caller: Operator, operations: Operations, job_id: JobId, body: RequestedBody = None) -> JobStatus:
    """Before its next message; it can be resumed later. 400 if it is done."""
    return await operations.acting_as(_actor(caller, body)).stop_job(job_id)


@router.post("/jobs/{job_id}/resume", summary="Resume a job")
async def resume(
    caller: Operator, operations: Operations, job_id: JobId, body: Annotated[ResumeRequest | None, Body()] = None
) -> JobStatus:
    """Checks unconfirmed messages again. 400 if the job is done."""
    again = body is not None and body.resend_unconfirmed
    return await operations.acting_as(_actor(caller, body)).resume_job(job_id, resend_unconfirmed=again)


@router.post("/jobs/{job_id}/abandon", summary="Abandon a job")
async def abandon(caller: Operator, operations: Operations, job_id: JobId, body: RequestedBody = None) -> JobStatus:
    """Permanently: messages that it has not sent stay in review."""
    return await operations.acting_as(_actor(caller, body)).abandon_job(job_id)


def _actor(caller: Operator, body: Requested | None) -> str:
    return caller.actor(body.requested_by if body else None)

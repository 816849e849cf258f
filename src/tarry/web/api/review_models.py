"""What is said over HTTP about the review: messages, groups, jobs, and what a caller can order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tarry.control.review import jobs
from tarry.control.review.job import Problem, Stands
from tarry.web.api.auth import Requested
from tarry.web.api.fields import Moment, QueueName, Text
from tarry.web.api.retries import StepTaken

Glob = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class InReview(BaseModel):
    """A message in review; payloads are never in a list."""

    model_config = ConfigDict(from_attributes=True)

    retry_id: str
    message_id: str | None
    queue: str = Field(description="The queue it failed in; empty if it does not say.")
    round: int
    retry_count: int
    max_retries: int | None
    policy: str | None
    error_class: str | None
    error_type: str | None
    error_reason: str | None
    fingerprint: str | None
    reason: str | None = Field(description="Why it is in review.")
    since: datetime = Field(description="In review since.")
    first_failed: datetime
    size: int | None = Field(description="Bytes of the stored payload; null where it was not kept.")


class Grouped(BaseModel):
    """Messages that have one side in common."""

    model_config = ConfigDict(from_attributes=True)

    key: str
    count: int
    oldest: datetime
    newest: datetime
    queues: int
    queue: str = Field(description="One of them.")
    error_type: str | None
    error_reason: str | None
    reason: str | None


class Numbers(BaseModel):
    """How many."""

    model_config = ConfigDict(from_attributes=True)

    books: int = Field(description="In review by the books.")
    queue: int | None = Field(description="Ready in the queue; null where the broker does not answer.")
    fits: int = Field(description="Of those in the books, how many fit what was asked for.")


class EditMade(BaseModel):
    """How it was changed before it was sent on; the original is kept."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    round: int
    job_id: str
    at: datetime
    actor: str
    changes: dict[str, Any]


class OneInReview(InReview):
    """One message, without its payload."""

    exchange: str
    routing_key: str
    job_id: str | None = Field(description="The job that has it in work.")
    steps: list[StepTaken] = Field(description="Its history.")
    edits: list[EditMade]


class Payload(BaseModel):
    """A message as it is in the books, or in the queue where they did not keep it."""

    body: str = Field(description="In base64.")
    properties: dict[str, Any] = Field(description="As plain values, `headers` among them.")


class Which(BaseModel):
    """Which messages: all of what is said has to fit."""

    model_config = ConfigDict(extra="forbid")

    queue: Glob | None = Field(None, description="A name or a glob; `*` for all, empty for those that name none.")
    reason: Text | None = Field(None, description="Part of the reason for the review.")
    fingerprint: Text | None = Field(None, description="Or the beginning of it.")
    error_type: Text | None = Field(None, description="A name or a glob.")
    before: Moment | None = Field(None, description="In review since before this moment.")
    after: Moment | None = None
    ids: list[QueueName] | None = Field(
        None,
        max_length=10_000,
        description="Retry ids, or the beginnings of them; or message ids of which one is in review.",
    )


class NewJob(Requested):
    """What is to be done with them."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["redrive", "discard"]
    which: Which
    fresh: bool = Field(True, description="Count anew; else the count stays, and the next failure is the last.")
    to: QueueName | None = Field(None, description="Another queue than the one it failed in.")
    delay_ms: int = Field(0, ge=0, le=10**12, description="Not at once.")
    rate: float | None = Field(
        None, ge=jobs.SLOWEST, le=jobs.FASTEST, allow_inf_nan=False, description="So many a second."
    )
    reason: Text | None = Field(None, description="Of a discard; needed there.")
    set_headers: dict[str, str | int | float | bool | None] = Field(default_factory=dict, max_length=100)
    drop_headers: list[str] = Field(default_factory=list, max_length=100)
    edit_body: str | None = Field(None, description="A new payload in base64, for a single message.")


@dataclass(frozen=True)
class JobInFull(Stands):
    """With the first hundred that did not go as asked."""

    problems: list[Problem]


class GoOn(Requested):
    """How."""

    resend_doubtful: bool = Field(False, description="What is in doubt is taken for not sent: some may come twice.")

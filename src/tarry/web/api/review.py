"""What is in review: groups, lists, one message; and the jobs that send it on or throw it away."""

from __future__ import annotations

import base64
import binascii
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query

from tarry.control.review import jobs, listing
from tarry.control.review.edits import Edits
from tarry.control.review.export import read_from_queue
from tarry.control.review.filters import Filter
from tarry.control.review.job import Order, Stands
from tarry.control.review.listing import By, Detail
from tarry.control.review.resend import Manner
from tarry.core.id_prefix import as_uuid
from tarry.errors import AmbiguousIdError, ConflictError, NotFoundError, SettingsError
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.desk import TheDesk
from tarry.web.api.fields import Moment, QueueName, Text
from tarry.web.api.paging import Cursor, Limit, Page
from tarry.web.api.retries import StepTaken
from tarry.web.api.review_models import (
    EditMade,
    Glob,
    GoOn,
    Grouped,
    InReview,
    JobInFull,
    NewJob,
    Numbers,
    OneInReview,
    Payload,
)

router = APIRouter(prefix="/review", tags=["review"])

Queue = Annotated[Glob | None, Query(description="Failed in this queue; a glob will do, empty for none at all.")]
Reason = Annotated[Text | None, Query(description="The reason for the review has this in it.")]
Print = Annotated[Text | None, Query(description="Of their error, or the beginning of it.")]
ErrorType = Annotated[Text | None, Query(description="A name, or a glob.")]
Before = Annotated[Moment | None, Query(description="In review since before this moment; ISO 8601, UTC.")]
After = Annotated[Moment | None, Query(description="In review since this moment or later.")]


def _chosen(
    *,
    queue: Queue = None,
    reason: Reason = None,
    fingerprint: Print = None,
    error_type: ErrorType = None,
    before: Before = None,
    after: After = None,
) -> Filter:
    return Filter(queue, reason, fingerprint, error_type, before, after)


Chosen = Annotated[Filter, Depends(_chosen)]


@router.get("", summary="How many are in review")
async def numbers(
    _caller: Looker,
    desk: TheDesk,
    chosen: Chosen,
) -> Numbers:
    """By the books and in the queue. They can differ: `tarry review check` tells why."""
    found = await listing.summary(desk)
    fits = await listing.count(desk, chosen)
    return Numbers(books=found.books, queue=found.queue, fits=fits)


@router.get("/groups", summary="Groups of what is in review")
async def groups(
    _caller: Looker,
    desk: TheDesk,
    chosen: Chosen,
    *,
    by: Annotated[By, Query(description="What they have in common.")] = "fingerprint",
    limit: Limit = 50,
) -> list[Grouped]:
    """The largest first."""
    return [Grouped.model_validate(one) for one in await listing.groups(desk, by, chosen, limit=limit)]


@router.get("/messages", summary="List what is in review")
async def messages(
    _caller: Looker,
    desk: TheDesk,
    chosen: Chosen,
    *,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[InReview]:
    """Oldest first, without payloads."""
    found = await listing.page(desk, chosen, limit=limit, cursor=cursor)
    return Page(items=[InReview.model_validate(one) for one in found.items], next=found.cursor)


Called = Annotated[
    QueueName, Path(description="A retry id, or the beginning of one; or a message id, if only one of it is in review.")
]


@router.get("/messages/{called}", summary="One message in review")
async def message(_caller: Looker, desk: TheDesk, called: Called) -> OneInReview:
    found = await _find(desk, called, payload=False)
    said = InReview.model_validate(found.item).model_dump()
    edits = [EditMade.model_validate(one) for one in found.edits]
    steps = [StepTaken.model_validate(one) for one in found.steps]
    more = {"exchange": found.exchange, "routing_key": found.routing_key, "job_id": found.job_id}
    return OneInReview.model_validate(said | more | {"edits": edits, "steps": steps})


@router.get("/messages/{called}/payload", summary="Its payload")
async def payload(_caller: Operator, desk: TheDesk, called: Called) -> Payload:
    """Needs the role operate. Where the books did not keep it, the queue is looked through."""
    found = await _find(desk, called, payload=True)
    if found.body is None:
        found = await read_from_queue(desk, found)
    if found.body is None:
        raise NotFoundError(f"The payload of {called!r} is neither in the books nor in the queue.")
    return Payload(body=base64.b64encode(found.body).decode(), properties=found.properties or {})


async def _find(desk: TheDesk, called: str, *, payload: bool) -> Detail:
    """One that is not in review is not found here."""
    try:
        return await listing.show(desk, called, payload=payload)
    except AmbiguousIdError:
        raise
    except ConflictError as error:
        raise NotFoundError(str(error)) from None


@router.post("/jobs", summary="Send them on, or throw them away", status_code=HTTPStatus.CREATED)
async def create(caller: Operator, desk: TheDesk, order: NewJob) -> Stands:
    """The selection is frozen now; the service works on it. What another consumer takes meanwhile is reported, not
    doubled. 409 if another job has all of them.
    """
    ids = await _ids(desk, order.which.ids)
    made = await jobs.create(desk, _order(order, ids), actor=caller.actor(order.requested_by))
    return made.stands()


@router.get("/jobs", summary="Jobs, newest first")
async def list_jobs(
    _caller: Looker,
    desk: TheDesk,
    *,
    only_open: Annotated[bool, Query(description="Without those that are done.")] = False,
    limit: Limit = 50,
) -> list[Stands]:
    return [one.stands() for one in await jobs.jobs(desk, only_open=only_open, limit=limit)]


JobId = Annotated[QueueName, Path(description="A job's id, or the beginning of one.")]


@router.get("/jobs/{job_id}", summary="One job with its progress")
async def job(_caller: Looker, desk: TheDesk, job_id: JobId) -> JobInFull:
    found = await jobs.get(desk, job_id)
    return JobInFull(**asdict(found.stands()), problems=await jobs.problems(desk, found.id))


Wish = Annotated[Requested | None, Body()]


@router.post("/jobs/{job_id}/stop", summary="Stop a job")
async def stop(caller: Operator, desk: TheDesk, job_id: JobId, said: Wish = None) -> Stands:
    """Before its next message; it can go on later. 400 if it is done."""
    return (await jobs.stop(desk, job_id, actor=_actor(caller, said))).stands()


@router.post("/jobs/{job_id}/go-on", summary="Go on with a job")
async def go_on(caller: Operator, desk: TheDesk, job_id: JobId, said: Annotated[GoOn | None, Body()] = None) -> Stands:
    """Looks again at what is in doubt. 400 if nothing is left of it."""
    again = said is not None and said.resend_doubtful
    found = await jobs.go_on(desk, job_id, actor=_actor(caller, said), resend_doubtful=again)
    return found.stands()


@router.post("/jobs/{job_id}/end", summary="End a job")
async def end(caller: Operator, desk: TheDesk, job_id: JobId, said: Wish = None) -> Stands:
    """For good: what it has not sent stays in review."""
    return (await jobs.end(desk, job_id, actor=_actor(caller, said))).stands()


def _actor(caller: Operator, said: Requested | None) -> str:
    return caller.actor(said.requested_by if said else None)


async def _ids(desk: TheDesk, given: list[str] | None) -> tuple[str, ...] | None:
    """Whole ids are taken as they are, however many; what is not in review is left out later."""
    if given is None:
        return None
    return tuple([as_uuid(one) or (await listing.resolve(desk, [one]))[0] for one in given])


def _order(order: NewJob, ids: tuple[str, ...] | None) -> Order:
    which = order.which
    chosen = Filter(which.queue, which.reason, which.fingerprint, which.error_type, which.before, which.after, ids)
    body = _body(order.edit_body)
    if body is not None and len(ids or ()) != 1:
        raise SettingsError("edit_body is for one message: name it in which.ids.")
    manner = Manner(order.fresh, order.to, order.delay_ms, Edits(order.set_headers, tuple(order.drop_headers), body))
    return Order(order.kind, chosen, manner, order.rate, order.reason)


def _body(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SettingsError("edit_body must be base64.") from None

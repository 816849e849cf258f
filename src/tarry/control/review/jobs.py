"""Jobs: a selection of messages in review, frozen when it is made, and what is to be done with each of them."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from tarry.contract.checks import check_origin
from tarry.contract.message import Acceptance, Origin
from tarry.contract.reading import RefusalError
from tarry.control.actions import recorded
from tarry.control.desk import Desk
from tarry.control.ids import whole_job_id
from tarry.control.review.edits import Edits, checked
from tarry.control.review.job import Job, Order, Problem
from tarry.control.review.listing import completed
from tarry.control.review.resend import Manner
from tarry.core.id_prefix import RULE, as_uuid
from tarry.core.ladder import itinerary
from tarry.errors import ConflictError, NotFoundError, SettingsError, WrongStateError
from tarry.topology.partial import whole

SLOWEST = 0.01
"""A message is in hand while its moment is waited for, and the broker takes it back after half an hour."""

FASTEST = 10_000.0


async def create(desk: Desk, order: Order, *, actor: str, here: bool = False) -> Job:
    """Freezes the selection. Nothing is sent yet: `work` does that, in the service, or `here` if that is said."""
    _check(desk, order)
    order = replace(order, chosen=await completed(desk, order.chosen))
    job_id = str(uuid.uuid4())
    detail = {"filter": order.chosen.told(), "manner": _plain_manner(order.manner), "rate": order.rate}
    async with recorded(desk.books, kind=f"review.{order.kind}", target=job_id, actor=actor, detail=detail) as action:
        async with desk.books.transaction() as page:
            await page.rows("review_patience")
            await page.rows(
                "review_new_job",
                job=job_id,
                kind=order.kind,
                actor=actor,
                filter=json.dumps(order.chosen.told()),
                manner=json.dumps(_plain_manner(order.manner)),
                body=order.manner.edits.body,
                rate=order.rate,
                why=order.reason,
                here=here,
            )
            frozen = await page.one("review_freeze", job=job_id, limit=order.limit, **order.chosen.parameters())
            chosen, taken = frozen or (0, 0)
            if not taken:
                await page.rows("review_drop_job", job=job_id)
        action.outcome = {"chosen": chosen, "taken": taken}
        if not chosen:
            raise NotFoundError("Nothing in review fits: see `tarry review list` for what there is.")
        if not taken:
            raise ConflictError(f"All {chosen:,} that fit are in the hands of another job: see `tarry review jobs`.")
    return await get(desk, job_id)


def _check(desk: Desk, order: Order) -> None:
    """Before anything is written."""
    if order.rate is not None and not SLOWEST <= order.rate <= FASTEST:
        raise SettingsError(f"A rate is from {SLOWEST:g} to {FASTEST:,.0f} a second, not {order.rate:g}.")
    if order.kind == "discard" and not (order.reason or "").strip():
        raise SettingsError("A discard needs a reason, which stays in the history: --reason '…'.")
    if order.chosen.is_empty:
        raise SettingsError("Say which: ids, or a filter such as --queue or --fingerprint; --queue '*' means all.")
    if order.kind == "discard":
        return
    checked(order.manner.edits)
    itinerary(desk.topology.rules.ladder, order.manner.delay_ms, desk.topology.rules.tiers)
    if order.manner.to is not None:
        try:
            check_origin(Origin(order.manner.to, "", ""), acceptance(desk))
        except RefusalError as refusal:
            raise SettingsError(f"--to: {str(refusal).replace('the origin ', '')}.") from None


def acceptance(desk: Desk) -> Acceptance:
    return Acceptance(desk.names, desk.topology.destinations, desk.topology.failures)


def _plain_manner(manner: Manner) -> dict[str, Any]:
    return {
        "fresh": manner.fresh,
        "to": manner.to,
        "delay_ms": manner.delay_ms,
        "set_headers": dict(manner.edits.headers),
        "drop_headers": list(manner.edits.dropped),
    }


async def manner_of(desk: Desk, job: Job) -> Manner:
    """As it was ordered."""
    said = job.manner
    body = await desk.books.one("review_job_body", job=job.id) if job.edits_body else None
    edits = Edits(said["set_headers"], tuple(said["drop_headers"]), body[0] if body else None)
    return Manner(said["fresh"], said["to"], said["delay_ms"], edits)


async def get(desk: Desk, called: str) -> Job:
    """By its id, or the beginning of it."""
    job_id = as_uuid(await whole_job_id(desk.books, called))
    rows = await desk.books.rows("review_jobs", job=job_id, only_open=False, limit=1) if job_id else []
    if not rows:
        raise NotFoundError(f"No job has the id {called!r}: see `tarry review jobs`. {RULE}")
    return Job(*rows[0])


async def jobs(desk: Desk, *, only_open: bool = False, limit: int = 50) -> list[Job]:
    """Newest first."""
    return [Job(*row) for row in await desk.books.rows("review_jobs", job=None, only_open=only_open, limit=limit)]


async def problems(desk: Desk, job_id: str, *, limit: int = 100) -> list[Problem]:
    return [Problem(*row) for row in await desk.books.rows("review_problems", job=job_id, limit=limit)]


async def stop(desk: Desk, job_id: str, *, actor: str) -> Job:
    """Whoever works on it stops before the next message; it can go on later."""
    return await _want(desk, job_id, "stop", actor)


async def go_on(desk: Desk, job_id: str, *, actor: str, resend_doubtful: bool = False, here: bool = False) -> Job:
    """With `resend_doubtful`, what is in doubt is taken for not sent: only a person can know that."""
    job = await get(desk, job_id)
    if here and job.kind == "redrive":
        whole(desk.files)  # raises before anything is written: policies are needed here
    if resend_doubtful:
        await desk.books.rows("review_resend_doubtful", job=job.id, actor=actor)
    else:
        await desk.books.rows("review_reopen", job=job.id)
    return await _want(desk, job.id, "run", actor, here=here)


async def end(desk: Desk, job_id: str, *, actor: str) -> Job:
    """For good; what it has not sent stays in review."""
    job = await get(desk, job_id)
    async with recorded(desk.books, kind="review.end", target=job.id, actor=actor):
        await desk.books.rows("review_end", job=job.id)
    return await get(desk, job.id)


async def _want(desk: Desk, job_id: str, wanted: str, actor: str, *, here: bool = False) -> Job:
    job = await get(desk, job_id)
    async with recorded(desk.books, kind=f"review.{wanted}", target=job.id, actor=actor):
        if not await desk.books.rows("review_want", job=job.id, wanted=wanted, here=here):
            raise WrongStateError(
                f"Job {job.id} is done since {job.finished_at:%Y-%m-%d %H:%M:%S}: nothing is left of it."
            )
    return await get(desk, job.id)

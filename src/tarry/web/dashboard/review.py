"""Review: groups, the messages of a selection, and the jobs that redrive or discard them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from starlette.responses import RedirectResponse, Response

from tarry.operations.review.browse import BYS, By, Filter, Group
from tarry.operations.review.redrive import edits_from
from tarry.web.api.review import NewJob, Which
from tarry.web.dashboard import charts
from tarry.web.dashboard.visit import STALE, Visit, validated

SAMPLES = 20
GROUPS = 50
JOBS = 50
PROBLEMS = 100
MOST_PROBLEMS = 10_000
"""On one page, if all are asked for."""
VERBS: dict[str, dict[str, str]] = {
    "prepared": {"resume": "Start", "abandon": "Do nothing"},
    "ready": {"stop": "Stop", "abandon": "Abandon"},
    "running": {"stop": "Stop", "abandon": "Abandon"},
    "stopping": {"resume": "Resume", "abandon": "Abandon"},
    "stopped": {"resume": "Resume", "abandon": "Abandon"},
}
"""What can be done to a job in each state, with the text of the button."""

AGAIN = {"resume": "Check what is unconfirmed again"}
"""To a job that is done, if it left something unconfirmed."""

# The reason of the review is a condition; that of the operator is the field `why`.
FIELDS = ("queue", "reason", "fingerprint", "error_type", "owner", "before", "after")
AGES = {
    "less than an hour": (None, 1),
    "an hour to a day": (1, 24),
    "a day to a week": (24, 168),
    "more than a week": (168, None),
}
"""Hours in review: at least, and less than."""


async def show_groups(visit: Visit) -> Response:
    by: By = next((one for one in BYS if one == visit.asked("by")), "fingerprint")
    summary = await visit.operations.review_summary(Filter())
    if visit.is_limited:
        groups = await visit.operations.review_groups(by, Filter(), limit=GROUPS)
    else:
        groups = await visit.shared.groups[by].get(STALE)
    jobs = await visit.operations.list_jobs(only_open=True, limit=JOBS)
    rows = [(one, selection_of(by, one, visit.now), charts.sparkline(one.hours)) for one in groups]
    return visit.render("review.html", by=by, bys=BYS, summary=summary, groups=rows, jobs=jobs)


def selection_of(by: By, group: Group, now: datetime) -> dict[str, Any] | None:
    """The filter that has the messages of this group; None if no filter can name them."""
    if by == "age":
        least, most = AGES[group.key]
        return {
            "before": (now - timedelta(hours=least)).isoformat() if least else None,
            "after": (now - timedelta(hours=most)).isoformat() if most else None,
        }
    if by == "reason":
        longest = max(group.key.split("#"), key=len).strip()
        return {"reason": longest[:200]} if longest else None
    return {by: group.key} if group.key or by == "queue" else None


async def show_selection(visit: Visit) -> Response:
    """The number is that of the messages in review at this moment, and the forms act on these and no later ones.

    What is recorded later with an earlier time, as after a fault, would be among them: then the job is only prepared.
    """
    asked = _asked(visit.request.query_params)
    asked.setdefault("before", visit.now.isoformat())
    which = validated(Which, asked)
    chosen = Filter(**which.model_dump(exclude={"ids"}))
    summary = await visit.operations.review_summary(chosen)
    page = await visit.operations.list_review(chosen, limit=SAMPLES, cursor=visit.asked("cursor"))
    return visit.render("selection.html", asked=asked, number=summary.fits, page=page)


def _asked(values: Any) -> dict[str, str]:
    """The conditions that were given. The queue may be empty: messages that name none."""
    found = {name: values[name] for name in FIELDS if name in values}
    return {name: value for name, value in found.items() if value or name == "queue"}


async def redrive(visit: Visit) -> Response:
    headers = edits_from(visit.lines("set_headers"), visit.lines("drop_headers"), None)
    return await _create(
        visit,
        {
            "kind": "redrive",
            "reset_attempts": visit.given("attempts") != "keep",
            "to": visit.given("to"),
            "rate": visit.given("rate"),
            "watch": visit.given("watch"),
            "reason": visit.given("why"),
            "set_headers": dict(headers.headers),
            "drop_headers": list(headers.dropped),
        },
    )


async def discard(visit: Visit) -> Response:
    return await _create(visit, {"kind": "discard", "rate": visit.given("rate"), "reason": visit.given("why")})


async def _create(visit: Visit, about: dict[str, Any]) -> Response:
    wanted = validated(NewJob, {**about, "which": _asked(visit.form), "expected": visit.given("expected")})
    job = await visit.operations.create_job(wanted.spec(None))
    return RedirectResponse(f"/review/jobs/{job.id}", 303)


async def show_jobs(visit: Visit) -> Response:
    return visit.render("jobs.html", jobs=await visit.operations.list_jobs(limit=JOBS))


async def show_job(visit: Visit) -> Response:
    job = await visit.operations.show_job(_id(visit))
    most = MOST_PROBLEMS if visit.asked("problems") == "all" else PROBLEMS
    problems = await visit.operations.job_problems(job.id, limit=most + 1)
    more = len(problems) > most
    verbs = VERBS.get(job.state, AGAIN if job.unconfirmed else {})
    return visit.render("job.html", job=job, problems=problems[:most], more=more, most=MOST_PROBLEMS, verbs=verbs)


async def stop_job(visit: Visit) -> Response:
    await visit.operations.stop_job(_id(visit))
    return visit.done("The job stops before its next message.", f"/review/jobs/{_id(visit)}")


async def resume_job(visit: Visit) -> Response:
    await visit.operations.resume_job(_id(visit))
    return visit.done("The job continues.", f"/review/jobs/{_id(visit)}")


async def abandon_job(visit: Visit) -> Response:
    await visit.operations.abandon_job(_id(visit))
    return visit.done("The job is abandoned: what it has not sent stays in review.", f"/review/jobs/{_id(visit)}")


def _id(visit: Visit) -> str:
    return str(visit.request.path_params["job_id"])

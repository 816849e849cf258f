"""Stuck attempts: they started, and did not end in time. Lists them, and recovers them."""

from __future__ import annotations

from starlette.responses import Response

from tarry.errors import Code
from tarry.operations.stuck import Wanted
from tarry.web.api.problems import ProblemError
from tarry.web.api.stuck import RecoverStuckRequest
from tarry.web.dashboard.visit import Visit, validated

MOST = 200


async def show(visit: Visit) -> Response:
    queue = visit.asked("queue")
    found = await visit.operations.list_stuck(queue=queue, limit=MOST)
    return visit.render("stuck.html", found=found, queue=queue, most=MOST)


async def recover(visit: Visit) -> Response:
    """One attempt, or all that the page showed."""
    ids = visit.named("ids").split()
    wanted = validated(RecoverStuckRequest, {"ids": ids, "reason": visit.given("reason")})
    if not wanted.ids:
        raise ProblemError(Code.INVALID_REQUEST, "Name the attempts.")
    done = await visit.operations.recover_stuck(
        Wanted(
            ids=wanted.ids,
            to_review=visit.given("where") == "review",
            at_once=bool(visit.given("at_once")),
            reason=wanted.reason,
        )
    )
    problems = "".join(f" {why}" for why in done.problems.values())
    return visit.done(f"Recovered {len(done.recovered)} of {len(ids)}.{problems}", "/stuck")

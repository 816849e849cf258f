"""The policies, each with its retries on an axis of time; and what the history says about them."""

from __future__ import annotations

from starlette.responses import Response

from tarry.errors import TarryError
from tarry.operations.advice import PolicyAdvice
from tarry.operations.explain import PolicySchedule
from tarry.web.dashboard import charts
from tarry.web.dashboard.visit import Visit

ADVICE_STALE = 3_600.0
"""Seconds by which advice may be older than usual, so that nobody waits for it."""


async def show(visit: Visit) -> Response:
    found = await visit.operations.policy_schedules()
    longest = max((one.retries[-1].after_ms for one in found if one.retries), default=0)
    pictures = [(one, _picture(one, longest)) for one in found]
    return visit.render("policies.html", policies=pictures, advice=await _advice(visit))


async def _advice(visit: Visit) -> PolicyAdvice | str | None:
    """Or why it cannot be given; None for a caller that is limited to some queues: it concerns all."""
    if visit.is_limited:
        return None
    try:
        return await visit.shared.advice.get(ADVICE_STALE)
    except TarryError as error:
        return str(error)


def _picture(policy: PolicySchedule, longest: int) -> object:
    return charts.schedule([one.after_ms for one in policy.retries], longest)

"""The policies, each with its retries on an axis of time."""

from __future__ import annotations

from starlette.responses import Response

from tarry.operations.explain import PolicySchedule
from tarry.web.dashboard import charts
from tarry.web.dashboard.visit import Visit


async def show(visit: Visit) -> Response:
    found = await visit.operations.policy_schedules()
    longest = max((one.retries[-1].after_ms for one in found if one.retries), default=0)
    return visit.render("policies.html", policies=[(one, _picture(one, longest)) for one in found])


def _picture(policy: PolicySchedule, longest: int) -> object:
    return charts.schedule([one.after_ms for one in policy.retries], longest)

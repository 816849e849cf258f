"""The overview: the verdict, what is wrong, and the numbers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from starlette.responses import Response

from tarry.errors import AuditUnavailableError, TarryError
from tarry.operations.overview import Activity
from tarry.operations.status import ServiceStatus
from tarry.operations.verdict import Seen, judge
from tarry.web.dashboard import charts
from tarry.web.dashboard.visit import STALE, Visit
from tarry.web.health import readiness

MOST_STUCK = 200

T = TypeVar("T")


@dataclass(slots=True)
class Reads:
    """What the page reads. Once Postgres did not answer, nothing more waits for it, so that the page comes soon."""

    troubles: list[str]
    is_store_away: bool = False

    async def read(self, make: Callable[[], Awaitable[T]]) -> T | None:
        if self.is_store_away:
            return None
        try:
            return await make()
        except TarryError as error:
            self.is_store_away = isinstance(error, AuditUnavailableError)
            self.troubles.append(str(error))
            return None


async def show(visit: Visit) -> Response:
    """What cannot be read is a finding; the rest of the page is shown."""
    status = await _status(visit)
    reads = Reads([], is_store_away=status.audit is None)
    operations, troubles = visit.operations, reads.troubles
    activity = await reads.read(lambda: _activity(visit))
    pauses = await reads.read(operations.show_pauses)
    stuck = await reads.read(lambda: operations.list_stuck(limit=MOST_STUCK))
    breakers = await reads.read(operations.list_breakers)
    number = None if stuck is None else len(stuck)
    reasons = [*troubles, *_reasons(visit)]
    seen = Seen(status, activity, pauses, number, _missing(visit), breakers or [], reasons)
    return visit.render(
        "overview.html",
        verdict=judge(seen),
        seen=seen,
        counts=status.audit,
        due=charts.bars(activity.due, "Returns due in the next hour", "now", "in 60 minutes") if activity else None,
        reviewed=charts.bars(activity.reviewed, "Came to review in the last hour", "60 minutes ago", "now")
        if activity
        else None,
    )


async def _status(visit: Visit) -> ServiceStatus:
    if visit.is_limited:
        return await visit.operations.status()
    return await visit.shared.status.get(STALE)


async def _activity(visit: Visit) -> Activity:
    if visit.is_limited:
        return await visit.operations.activity()
    return await visit.shared.activity.get(STALE)


def _missing(visit: Visit) -> int | None:
    """From the latest audit pass of this process. It concerns all queues."""
    findings = visit.shared.service.metrics.audit.findings
    return findings.missing if findings is not None and not visit.is_limited else None


def _reasons(visit: Visit) -> list[str]:
    """Why this process is not ready. Notes, such as a paused intake, are findings of their own."""
    service = visit.shared.service
    return [] if visit.is_limited or readiness(service)[0] != "not ready" else list(service.troubles)

"""The audit: what the latest pass found, a comparison of store and broker, and what to do with what is missing."""

from __future__ import annotations

from starlette.responses import Response

from tarry.audit.verify import AuditRules
from tarry.operations.audit import RecoverReport
from tarry.web.api.audit import WriteOffRequest
from tarry.web.api.dependencies import for_all_queues
from tarry.web.dashboard.visit import STALE, Visit, validated

MOST = 100


async def show(visit: Visit) -> Response:
    return await _page(visit, None)


async def compare(visit: Visit) -> Response:
    """Reads the open retries and the depths of the queues. It changes nothing, and takes some seconds."""
    return await _page(visit, await visit.operations.recover(AuditRules()))


async def recover(visit: Visit) -> Response:
    done = await visit.operations.recover(AuditRules(), execute=True)
    return visit.done(f"Published again: {done.recoverable:,} missing retries.", "/audit")


async def write_off(visit: Visit) -> Response:
    wanted = validated(WriteOffRequest, {"reason": visit.given("reason")})
    done = await visit.operations.write_off(AuditRules(), reason=wanted.reason, execute=True)
    return visit.done(f"Written off: {len(done.written_off):,} retries that cannot be published again.", "/audit")


async def _page(visit: Visit, report: RecoverReport | None) -> Response:
    if visit.caller is not None:
        await for_all_queues(visit.caller)
    status = await visit.shared.status.get(STALE)
    activity = await visit.shared.activity.get(STALE)
    return visit.render(
        "audit.html",
        counts=status.audit,
        activity=activity,
        latest=visit.shared.service.metrics.audit.findings,
        report=report,
        most=MOST,
    )

"""The audit: what the latest pass found, a comparison of store and broker, and what to do with what is missing."""

from __future__ import annotations

from starlette.responses import Response

from tarry.audit.recover import Recovered
from tarry.audit.verify import AuditRules
from tarry.errors import Code
from tarry.operations.audit import RecoverReport, can_recover
from tarry.web.api.audit import WriteOffRequest
from tarry.web.api.dependencies import for_all_queues
from tarry.web.api.problems import ProblemError
from tarry.web.dashboard.visit import STALE, Visit, validated

MOST = 100
"""Missing retries that are listed."""

MOST_WRITTEN_OFF = 2_000
"""In one form, which names each of them."""


async def show(visit: Visit) -> Response:
    return await _page(visit, None)


async def compare(visit: Visit) -> Response:
    """Reads the open retries and the depths of the queues. It changes nothing, and takes some seconds."""
    return await _page(visit, await visit.operations.recover(AuditRules()))


async def recover(visit: Visit) -> Response:
    done = await visit.operations.recover(AuditRules(), execute=True)
    return visit.done(f"Published again: {_outcome(done.recovered)}.", "/audit")


def _outcome(done: Recovered) -> str:
    """What became of them, and why some were not published."""
    parts = [f"{done.sent:,}"]
    if done.moved_on:
        parts.append(f"{done.moved_on:,} were no longer missing")
    if done.not_rebuilt:
        retry, why = done.not_rebuilt[0]
        parts.append(f"{len(done.not_rebuilt):,} cannot be published again, such as {retry}: {why}")
    if done.no_queue:
        parts.append(f"declare, before their messages come due, what does not exist: {', '.join(done.no_queue)}")
    return "; ".join(parts)


async def write_off(visit: Visit) -> Response:
    """Only what the page of the comparison named: what is missing since then is not closed unseen."""
    ids = visit.named("ids").split()
    wanted = validated(WriteOffRequest, {"retry_ids": ids, "reason": visit.given("reason")})
    if not wanted.retry_ids:
        raise ProblemError(Code.INVALID_REQUEST, "Name the retries: compare store and broker first.")
    done = await visit.operations.write_off(
        AuditRules(), retry_ids=wanted.retry_ids, reason=wanted.reason, execute=True
    )
    changed = len(wanted.retry_ids) - len(done.written_off)
    others = f" {changed:,} others have changed meanwhile, and were left." if changed else ""
    return visit.done(f"Written off: {len(done.written_off):,}.{others}", "/audit")


async def _page(visit: Visit, report: RecoverReport | None) -> Response:
    if visit.caller is not None:
        await for_all_queues(visit.caller)
    status = await visit.shared.status.get(STALE)
    activity = await visit.shared.activity.get(STALE)
    missing = [] if report is None else [one.retry for one in report.verdict.missing]
    return visit.render(
        "audit.html",
        counts=status.audit,
        activity=activity,
        latest=visit.shared.service.metrics.audit.findings,
        report=report,
        can_recover=can_recover,
        lost=[one for one in missing if not can_recover(one)],
        most=MOST,
        most_written_off=MOST_WRITTEN_OFF,
    )

"""The topology: the path of a message with what is in its queues now, and what differs from the files."""

from __future__ import annotations

from markupsafe import Markup
from starlette.responses import Response

from tarry.topology.findings import Finding
from tarry.topology.model import Topology
from tarry.topology.show import svg_for_page
from tarry.web.api.dependencies import for_all_queues
from tarry.web.dashboard.visit import STALE, Visit


async def show(visit: Visit) -> Response:
    if visit.caller is not None:
        await for_all_queues(visit.caller)
    status = await visit.shared.status.get(STALE)
    depths = {one.tier: one.depth for one in status.tiers if one.depth} | status.queues
    findings: list[Finding] = await visit.shared.findings.get(STALE)
    files = visit.shared.files
    return visit.render(
        "topology.html",
        status=status,
        picture=Markup(svg_for_page(files, depths)) if isinstance(files, Topology) else None,  # noqa: S704 - escaped there
        wrong=[one for one in findings if one.level == "wrong"],
        notes=[one for one in findings if one.level == "note"],
    )

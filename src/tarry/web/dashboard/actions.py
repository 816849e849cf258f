"""The action log: who did what, with its outcome."""

from __future__ import annotations

from starlette.responses import Response

from tarry.operations.lookup import SEARCHED
from tarry.web.dashboard.visit import Visit

PAGE = 50


async def show(visit: Visit) -> Response:
    asked = {name: visit.asked(name) for name in ("actor", "kind", "target")}
    found = await visit.operations.list_actions(**asked, limit=PAGE, cursor=visit.asked("cursor"))
    return visit.render("actions.html", asked=asked, page=found, searched=SEARCHED)

"""The API on the service's application: its routes, its guard, its description."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from fastapi import APIRouter, Depends, FastAPI

from tarry.control.calls import Calls
from tarry.control.desk import Desk
from tarry.control.standing import look
from tarry.router.service import Service
from tarry.router.threads import in_thread
from tarry.settings import Settings
from tarry.topology.verify import verify
from tarry.web.api import PREFIX, actions, queues, retries, retry_actions, review, status, topology
from tarry.web.api.auth import Access
from tarry.web.api.guard import Guard, Rules
from tarry.web.api.limits import Rates
from tarry.web.api.openapi import describe
from tarry.web.api.shared import Shared
from tarry.web.api.strict import known_parameters_only

OPENAPI = f"{PREFIX}/openapi.json"

FRESH = 3.0
"""Seconds that a look at everything is good for: the broker's own numbers are up to five seconds old."""

ROUTERS: tuple[APIRouter, ...] = (
    retries.router,
    retry_actions.router,
    queues.router,
    review.router,
    status.router,
    topology.router,
    actions.router,
)
"""Each module's routes; their paths begin behind the prefix."""


def mount(app: FastAPI, service: Service, settings: Settings, desk: Desk) -> None:
    app.state.desk, app.state.service = desk, service
    app.state.standing = Shared(partial(look, desk), FRESH)
    app.state.findings = Shared(partial(in_thread, lambda: verify(desk.topology, desk.address), "verify"), FRESH)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(known_parameters_only)])
    app.add_middleware(Guard, rules=_rules(settings, desk))
    describe(app)


def _rules(settings: Settings, desk: Desk) -> Rules:
    timeout = float(settings.api_timeout_s)
    calls = Calls(desk.books, lease=timedelta(seconds=2 * timeout + 30))
    return Rules(Access.of(settings), calls, Rates(settings.api_rate), settings.api_body_limit, timeout)

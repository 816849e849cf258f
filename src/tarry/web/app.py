"""Health, readiness, metrics and, if enabled, the API and the dashboard over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from tarry import __version__
from tarry.core.signature import Secret
from tarry.errors import SettingsError
from tarry.operations.context import OperatorContext
from tarry.operations.idempotency import IdempotencyKeys
from tarry.operations.overview import activity as read_activity
from tarry.operations.overview import destination_numbers
from tarry.operations.review.browse import BYS, Filter
from tarry.operations.review.browse import groups as review_groups
from tarry.operations.status import read_status
from tarry.service.app import Service
from tarry.settings import Settings
from tarry.store.errors import kind_of
from tarry.tasks import in_thread
from tarry.topology.verify import verify
from tarry.web.api import (
    PREFIX,
    actions,
    adaptive,
    audit,
    budgets,
    events,
    explain,
    policies,
    problems,
    queues,
    retries,
    review,
    statistics,
    status,
    stuck,
    topology,
    webhooks,
)
from tarry.web.api.auth import Access
from tarry.web.api.dependencies import Shared
from tarry.web.api.middleware import ApiRules, Middleware, Rates
from tarry.web.api.openapi import describe
from tarry.web.api.parameters import known_parameters_only
from tarry.web.connections import ConnectionLimits, limited
from tarry.web.dashboard.app import Dashboard
from tarry.web.dashboard.review import GROUPS
from tarry.web.dashboard.visit import Readings
from tarry.web.health import readiness
from tarry.web.hooks import ResumeHook

NOT_READY = 503
BACKLOG = 128

OPENAPI = f"{PREFIX}/openapi.json"

FRESH = 3.0
"""Seconds for which status and findings are reused: the statistics of the broker are up to five seconds old."""

ROUTERS: tuple[APIRouter, ...] = (
    retries.router,
    queues.router,
    stuck.router,
    budgets.router,
    adaptive.router,
    review.router,
    status.router,
    topology.router,
    audit.router,
    explain.router,
    policies.router,
    statistics.router,
    actions.router,
    events.router,
    webhooks.router,
)
"""The routes of each module; their paths are relative to the prefix."""


def check_exposure(settings: Settings) -> None:
    """Raises SettingsError if the API would be open to others without tokens."""
    if settings.http_api == "on":
        Access.of(settings)


def make_app(service: Service, settings: Settings, context: OperatorContext) -> FastAPI:
    """The HTTP application of one service. Handlers run in the event loop of the router and must not block it."""
    name, with_api = settings.service_name, settings.http_api == "on"
    described = OPENAPI if with_api else None
    app = FastAPI(title=name, version=__version__, openapi_url=described, docs_url=None, redoc_url=None)
    problems.install(app)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Liveness: the event loop runs."""
        return {"status": "ok", "service": name, "version": __version__}

    @app.get("/readyz", responses={NOT_READY: {"description": "Not ready; `reasons` gives the causes."}})
    async def readyz() -> JSONResponse:
        """Ready to route requests; without Postgres it is degraded, but ready. `process` tells services apart."""
        state, reasons = readiness(service)
        postgres = kind_of(service.degraded).value if service.degraded else "ok"
        answer = {"status": state, "reasons": reasons, "postgres": postgres, "process": os.getpid()}
        return JSONResponse(answer, NOT_READY if state == "not ready" else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        service.show_state()
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    if with_api:
        _add_api(app, service, settings, context)
    return app


def _add_api(app: FastAPI, service: Service, settings: Settings, context: OperatorContext) -> None:
    app.state.context, app.state.service = context, service
    app.state.replaying = asyncio.Lock()
    app.state.status = Shared(partial(read_status, context), FRESH)
    app.state.findings = Shared(partial(in_thread, lambda: verify(context.topology, context.address), "verify"), FRESH)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(known_parameters_only)])
    if settings.hook_secret is not None:
        _resume_hook(settings, context, settings.hook_secret.get_secret_value()).install(app)
    rules = _rules(settings, context)
    app.add_middleware(Middleware, rules=rules)
    describe(app)
    activity = Shared(partial(read_activity, context), FRESH)
    destinations = Shared(partial(destination_numbers, context), FRESH)
    groups = {by: Shared(partial(review_groups, context, by, Filter(), limit=GROUPS), FRESH) for by in BYS}
    readings = Readings(app.state.status, activity, app.state.findings, context.files, destinations, groups, service)
    app.add_middleware(Dashboard, rules=rules, settings=settings, context=context, readings=readings)


def _resume_hook(settings: Settings, context: OperatorContext, secret: str) -> ResumeHook:
    calls = IdempotencyKeys(context.store, lease=timedelta(seconds=2 * settings.api_timeout_s + 30))
    return ResumeHook(context, Secret.parse(secret), calls, Rates(settings.api_rate))


def _rules(settings: Settings, context: OperatorContext) -> ApiRules:
    timeout = float(settings.api_timeout_s)
    calls = IdempotencyKeys(context.store, lease=timedelta(seconds=2 * timeout + 30))
    return ApiRules(Access.of(settings), calls, Rates(settings.api_rate), settings.api_body_limit, timeout)


def limits_of(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(settings.http_request_s, settings.http_idle_s, settings.http_connections)


class Server(uvicorn.Server):
    """uvicorn in the event loop of the router, which handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, limits: ConnectionLimits) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=limited(limits),
            ws="none",
            timeout_keep_alive=limits.idle,  # type: ignore[arg-type] # it is passed to call_later
            log_level="warning",
            access_log=False,
            lifespan="off",
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"Cannot listen on {host}:{port} for health and metrics: {error.strerror}. "
            "Set HTTP_PORT (and HTTP_HOST) to a free port; 0 picks one."
        ) from error
    listener.listen(BACKLOG)
    return listener

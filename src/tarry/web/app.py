"""Health, readiness and metrics over HTTP, and the API where it is wanted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from tarry import __version__
from tarry.audit.trouble import kind_of
from tarry.control.desk import Desk
from tarry.errors import SettingsError
from tarry.router.service import Service
from tarry.settings import Settings
from tarry.web.api import problems
from tarry.web.api.auth import Access
from tarry.web.api.mounting import OPENAPI, mount
from tarry.web.connections import Limits, limited
from tarry.web.health import readiness

NOT_READY = 503
BACKLOG = 128


def check_exposure(settings: Settings) -> None:
    """Raises SettingsError if the API would be open to others without tokens."""
    if settings.http_api == "on":
        Access.of(settings)


def make_app(service: Service, settings: Settings, desk: Desk) -> FastAPI:
    """The HTTP face of one service. Handlers run in the router's loop: none of them may block it."""
    name, with_api = settings.service_name, settings.http_api == "on"
    described = OPENAPI if with_api else None
    app = FastAPI(title=name, version=__version__, openapi_url=described, docs_url=None, redoc_url=None)
    problems.install(app)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Alive: the loop turns."""
        return {"status": "ok", "service": name, "version": __version__}

    @app.get("/readyz", responses={NOT_READY: {"description": "Not ready; `reasons` says why."}})
    async def readyz() -> JSONResponse:
        """Ready to move requests; Postgres being away is degraded, but ready."""
        status, reasons = readiness(service)
        postgres = kind_of(service.degraded).value if service.degraded else "ok"
        answer = {"status": status, "reasons": reasons, "postgres": postgres}
        return JSONResponse(answer, NOT_READY if status == "not ready" else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        service.show_state()
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    if with_api:
        mount(app, service, settings, desk)
    return app


def limits_of(settings: Settings) -> Limits:
    return Limits(settings.http_request_s, settings.http_idle_s, settings.http_connections)


class Server(uvicorn.Server):
    """uvicorn beside the router in one loop: signals are the router's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, limits: Limits) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=limited(limits),
            ws="none",
            timeout_keep_alive=limits.idle,  # type: ignore[arg-type] # it is handed to call_later as it is
            log_level="warning",
            access_log=False,
            lifespan="off",
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"Cannot listen on {host}:{port} for health and metrics: {error.strerror}. "
            "Set HTTP_PORT (and HTTP_HOST) to a free one; 0 takes any."
        ) from error
    listener.listen(BACKLOG)
    return listener

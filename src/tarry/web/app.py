"""Health, readiness and metrics over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tarry import __version__
from tarry.errors import SettingsError
from tarry.router.service import Service

NOT_READY = 503
BACKLOG = 128


def make_app(service: Service, name: str) -> FastAPI:
    """The HTTP face of one service. Handlers run in the loop: none of them waits for anything."""
    app = FastAPI(title=name, version=__version__, docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Alive: the loop turns."""
        return {"status": "ok", "service": name, "version": __version__}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Ready to move requests; Postgres being away is degraded, but ready."""
        troubles, degraded = service.troubles, service.degraded
        status = "not ready" if troubles else "degraded" if degraded else "ready"
        reasons = troubles + ([degraded] if degraded else [])
        return JSONResponse({"status": status, "reasons": reasons}, NOT_READY if troubles else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        service.show_state()
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


class Server(uvicorn.Server):
    """uvicorn beside the router in one loop: signals are the router's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: FastAPI) -> Server:
    return Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))


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

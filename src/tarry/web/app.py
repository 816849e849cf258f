"""Health, readiness and metrics over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tarry import __version__
from tarry.router.service import Service

NOT_READY = 503


def make_app(service: Service, name: str) -> FastAPI:
    """The HTTP face of one service."""
    app = FastAPI(title=name, version=__version__, docs_url=None, redoc_url=None)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """Alive: the process answers."""
        return {"status": "ok", "service": name, "version": __version__}

    @app.get("/readyz")
    def readyz() -> JSONResponse:
        """Ready to move requests; Postgres being away is degraded, but ready."""
        troubles, degraded = service.troubles, service.degraded
        status = "not ready" if troubles else "degraded" if degraded else "ready"
        reasons = troubles + ([degraded] if degraded else [])
        return JSONResponse({"status": status, "reasons": reasons}, NOT_READY if troubles else 200)

    @app.get("/metrics")
    def metrics() -> Response:
        service.metrics.degraded.set(service.degraded is not None)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


class Server(uvicorn.Server):
    """uvicorn beside the router in one loop: signals are the router's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: FastAPI, host: str, port: int) -> Server:
    return Server(uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False, lifespan="off"))

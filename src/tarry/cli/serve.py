"""`tarry serve`: the service, until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import socket
from collections.abc import Coroutine
from typing import Annotated, Any

import structlog
import typer

from tarry.audit.migrate import migrate
from tarry.audit.store import Store
from tarry.cli.logs import action_writer, set_up_logs
from tarry.cli.options import TopologyFolder
from tarry.router.service import Service
from tarry.settings import Settings, load_settings
from tarry.web.app import listen, make_app, make_server

log = structlog.get_logger()

HTTP_GOODBYE = 1.0


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the topology anew."""
    set_up_logs(settings.log_format, settings.service_name)
    dsn = settings.dsn
    service = Service(
        settings.read_topology(),
        settings.address,
        Store(dsn, actor()),
        migrate=lambda: migrate(dsn),
        batch=settings.batch_size,
        write_actions=action_writer(settings.log_format, settings.service_name),
        files=(settings.topology_folder, settings.read_topology),
    )
    _run(_serve(service, settings, listen(settings.http_host, settings.http_port)))


def actor() -> str:
    """Who writes in the audit: a new name with every start, so that a successor can take over from the dead."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


async def _serve(service: Service, settings: Settings, listener: socket.socket) -> None:
    stop = asyncio.Event()
    _on_signals(stop, service)
    server = make_server(make_app(service, settings.service_name))
    http = asyncio.create_task(server.serve([listener]))
    host, port = listener.getsockname()[:2]
    log.info("started", broker=str(service.address), http=f"{host}:{port}", batch=settings.batch_size)
    try:
        await service.run(stop)
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait([http], timeout=HTTP_GOODBYE)
        log.info("stopped")


def _on_signals(stop: asyncio.Event, service: Service) -> None:
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    if service.reload is not None:
        loop.add_signal_handler(signal.SIGHUP, service.reload.asked.set)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one."""
    _spare_the_collector()
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _spare_the_collector() -> None:
    """What the imports left stays for good, and a batch is thousands of objects that die by themselves: looking at
    all of them again and again took a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def register(app: typer.Typer) -> None:
    app.command("serve")(_serve_command)


def _serve_command(
    folder: TopologyFolder = None,
    log_format: Annotated[str | None, typer.Option("--log", envvar="TARRY_LOG", help="json or console.")] = None,
) -> None:
    """Run the service: take retry requests, put them into tiers, keep the books. Settings come from the environment."""
    serve(load_settings(topology=folder, log_format=log_format))

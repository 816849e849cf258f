"""`tarry serve`: the service, until it is told to stop."""

from __future__ import annotations

import asyncio
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
from tarry.broker.address import Address
from tarry.cli.logs import set_up_logs
from tarry.cli.options import TopologyFolder
from tarry.errors import AuditError, BrokerUnreachableError, TopologyMismatchError
from tarry.router.service import Service
from tarry.settings import Settings, load_settings
from tarry.topology.model import Topology
from tarry.topology.verify import verify
from tarry.web.app import make_app, make_server

log = structlog.get_logger()


def serve(settings: Settings) -> None:
    """Check, then run until SIGTERM or SIGINT."""
    set_up_logs(settings.log_format, settings.service_name)
    topology, address = settings.read_topology(), settings.address
    prepare(topology, address, settings.dsn)
    service = Service(topology, address, Store(settings.dsn, actor()), batch=settings.batch_size)
    _run(_serve(service, settings))


def actor() -> str:
    """Who writes in the audit: a new name with every start, so that a successor can take over from the dead."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def prepare(topology: Topology, address: Address, dsn: str) -> None:
    """Refuse to start on a broker that would lose or strand messages; Postgres may come later."""
    try:
        findings = verify(topology, address)
    except BrokerUnreachableError as error:
        log.warning("start-up check skipped", reason=str(error))
    else:
        if findings:
            lines = [str(finding) for finding in findings]
            raise TopologyMismatchError("\n".join([*lines, "Run `tarry topology apply`, then start again."]))
    try:
        migrate(dsn)
    except AuditError as error:
        log.warning("postgres is away, starting without it", error=str(error))


async def _serve(service: Service, settings: Settings) -> None:
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    server = make_server(make_app(service, settings.service_name), settings.http_host, settings.http_port)
    http = asyncio.create_task(server.serve())
    log.info("started", broker=str(service.address), http=f"{settings.http_host}:{settings.http_port}")
    try:
        await service.run(stop)
    finally:
        server.should_exit = True
        await http
        log.info("stopped")


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def register(app: typer.Typer) -> None:
    app.command("serve")(_serve_command)


def _serve_command(
    folder: TopologyFolder = None,
    log_format: Annotated[str | None, typer.Option("--log", envvar="TARRY_LOG", help="json or console.")] = None,
) -> None:
    """Run the service: take retry requests, put them into tiers, keep the books. Settings come from the environment."""
    serve(load_settings(topology=folder, log_format=log_format))

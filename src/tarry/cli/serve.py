"""`tarry serve`: the service, until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import socket
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any

import structlog
import typer

from tarry.audit.migrate import migrate
from tarry.audit.store import Store
from tarry.audit.upkeep import Keeper, Upkeep
from tarry.broker.management import Management
from tarry.cli.config import Given, SettingsFile
from tarry.cli.logs import action_writer, set_up_logs
from tarry.cli.options import TopologyFolder
from tarry.control import intake, sweep, watch
from tarry.control.desk import Desk
from tarry.control.review import runner as review_jobs
from tarry.router.service import Service
from tarry.settings import Settings, load_settings
from tarry.settings.sources import given_from
from tarry.settings.spans import span_of
from tarry.topology.record import described

log = structlog.get_logger()

HTTP_GOODBYE = 1.0
LAST_GOODBYES = 2.0
"""Seconds for what is still connected, once everything has come to its end."""

LOOKING = 10
"""Seconds that the management API has for an answer, at a pass over the books."""


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the topology anew."""
    from tarry.web.app import check_exposure, listen  # noqa: PLC0415 - FastAPI is slow to import, and only for this

    check_exposure(settings)
    set_up_logs(settings.log_format, settings.service_name)
    dsn, who, every = settings.dsn, actor(), span_of(settings.look_every)
    service = Service(
        settings.read_topology(),
        settings.address,
        Store(dsn, who, largest_payload=settings.largest_payload),
        migrate=lambda: migrate(dsn),
        batch=settings.batch_size,
        write_actions=action_writer(settings.log_format, settings.service_name),
        files=(settings.topology_folder, settings.read_topology),
        keeper=_keeper(settings, who) if every else None,
        look_every=every.total_seconds() if every else 0.0,
    )
    _run(_serve(service, settings, who, listen(settings.http_host, settings.http_port)))


def _keeper(settings: Settings, who: str) -> Keeper:
    upkeep = Upkeep(
        quiet=span_of(settings.presume_after),
        keep=span_of(settings.keep_history),
        keep_payloads=span_of(settings.keep_payloads),
    )
    names = settings.read_topology().broker_names
    return Keeper(settings.dsn, names, Management(settings.address, timeout=LOOKING), who, upkeep)


def actor() -> str:
    """Who writes in the audit: a new name with every start, so that a successor can take over from the dead."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


async def _serve(service: Service, settings: Settings, who: str, listener: socket.socket) -> None:
    async with Desk.open(service.topology, service.address, settings.dsn, actor=who) as desk:
        await _serve_with(desk, service, settings, listener)
        _leave_whoever_hangs()


def _leave_whoever_hangs() -> None:
    """The work is done, and only goodbyes are left: a Postgres that does not answer one must not keep the process."""
    last = threading.Timer(LAST_GOODBYES, os._exit, [0])
    last.daemon = True
    last.start()


async def _serve_with(desk: Desk, service: Service, settings: Settings, listener: socket.socket) -> None:
    from tarry.web.app import limits_of, make_app, make_server  # noqa: PLC0415 - as above

    stop = asyncio.Event()
    _on_signals(stop, service)
    service.on_topology = desk.use
    service.beside = {
        "sweeper": partial(sweep.run, desk),
        "holds": partial(watch.run, desk),
        "intake": lambda stop: intake.run(desk, stop, service.set_intake),
        "review": partial(review_jobs.run, desk),
    }
    server = make_server(make_app(service, settings, desk), limits_of(settings))
    http = asyncio.create_task(server.serve([listener]))
    host, port = listener.getsockname()[:2]
    log.info(
        "started",
        broker=str(service.address),
        http=f"{host}:{port}",
        batch=settings.batch_size,
        topology=described(service.topology),
    )
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
    settings_file: SettingsFile = None,
    given: Given = None,
) -> None:
    """Run the service: take retry requests, put them into tiers, keep the books. `tarry config` shows its settings."""
    serve(load_settings(settings_file, **(given_from(given or []) | _flags(topology=folder, log_format=log_format))))


def _flags(**flags: object) -> dict[str, object]:
    """Those that were given."""
    return {name: value for name, value in flags.items() if value is not None}

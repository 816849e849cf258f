"""`tarry serve`: runs the service until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import socket
import threading
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import structlog
import typer

from tarry.amqp.management import Management
from tarry.analytics.rollups import StatisticsRules
from tarry.audit.maintenance import AuditPass, AuditPassRules
from tarry.cli.config import Given, SettingsFile
from tarry.cli.logs import action_writer, set_up_logs
from tarry.cli.options import TopologyFolder
from tarry.errors import SettingsError
from tarry.events.outbox import Outbox
from tarry.events.webhooks import WebhookDeliveries
from tarry.operations import action_log, budgets, cancel_reconciler, intake, pause_reconciler, stuck
from tarry.operations.adaptive import AdaptiveDecisions
from tarry.operations.breaker_reconciler import BreakerCounts
from tarry.operations.context import OperatorContext, OperatorLimits
from tarry.operations.credit_check import CreditCheck
from tarry.operations.review import work as review_work
from tarry.service.app import BackgroundTask, Service, build_service
from tarry.service.connections import IntakeSwitch
from tarry.service.heartbeat import Heartbeat
from tarry.service.metrics import Metrics
from tarry.service.processes import PARENT_OPTION, Command, Parent, Processes
from tarry.service.tracing import span_sender
from tarry.settings import Settings, load_settings
from tarry.settings.model import span_of
from tarry.settings.sources import given_from
from tarry.store.claims import Store
from tarry.store.database import migrate
from tarry.tasks import sleep_unless
from tarry.topology.model import Topology
from tarry.topology.record import described

log = structlog.get_logger()

UNUSED_SETTING = "setting has no effect"
NOTHING_POLLS = "nothing polls, the broker returns each retry when it is due"

PROGRAM = ("-P", "-m", "tarry", "serve")
"""Of one of several processes: this Python, whatever else is in the current folder."""

HIGHEST_PORT = 65_535

READY_EVERY = 0.1
"""Seconds between two checks of whether a process is ready for the first time."""

HTTP_CLOSE_SECONDS = 1.0
LAST_CLOSE_SECONDS = 2.0
"""Seconds to close connections after all work has ended."""

LONGEST_PASS = timedelta(seconds=30)
"""Another router takes over from a leader that has made no audit pass for the interval and this long."""

FINISH_EVERY = 60.0
"""Seconds between two looks for recoveries of stuck attempts that were begun and not finished."""

MANAGEMENT_TIMEOUT = 10
"""Timeout of requests to the management API in an audit pass, in seconds."""


def serve(settings: Settings, parent: Parent | None = None) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads the topology. Several processes have a parent."""
    from tarry.web.app import check_exposure, listen  # noqa: PLC0415 - FastAPI is slow to import, and only for this

    check_exposure(settings)
    set_up_logs(settings.log_format, settings.service_name)
    if parent is not None:
        structlog.contextvars.bind_contextvars(process=parent.number)
    topology = settings.read_topology()
    if settings.retry_poll_interval_ms is not None:
        log.warning(UNUSED_SETTING, setting="RETRY_POLL_INTERVAL_MS", do="remove it: " + NOTHING_POLLS)
    _run(_serve(topology, settings, actor(), listen(settings.http_host, settings.http_port), parent))


def serve_several(settings: Settings, arguments: Sequence[str]) -> int:
    """Run several processes until SIGTERM or SIGINT; returns the exit code. `arguments` are those of `tarry serve`.

    What is wrong with the settings or the topology is reported once, before any process starts.
    """
    from tarry.web.app import check_exposure  # noqa: PLC0415 - as above

    check_exposure(settings)
    set_up_logs(settings.log_format, settings.service_name)
    settings.read_topology()
    _ = settings.dsn  # raises if it is not set
    first, number = settings.http_port, settings.processes
    if first + number - 1 > HIGHEST_PORT:
        raise SettingsError(
            f"HTTP_PORT={first} leaves no ports for {number} processes: they take {first} to {first + number - 1}. "
            "Choose a lower one."
        )
    ports = [port + first if first else 0 for port in range(number)]
    log.info("running several routers", processes=number, http_ports=ports if first else "any")
    commands = [
        Command(place, [*PROGRAM, *arguments, "--set", f"HTTP_PORT={port}"], _environment(settings))
        for place, port in enumerate(ports, 1)
    ]
    code = asyncio.run(Processes(commands).run())
    log.info("all routers stopped", exit_code=code)
    return code


def _environment(settings: Settings) -> dict[str, str]:
    """A browser sends the cookies of one port to all ports of the host: sessions are valid at each of them."""
    key = {} if settings.dashboard_key else {"DASHBOARD_KEY": secrets.token_hex(32)}
    return dict(os.environ) | key


def _service(context: OperatorContext, topology: Topology, settings: Settings, who: str) -> Service:
    dsn, every = settings.dsn, span_of(settings.look_every)
    switch, metrics = IntakeSwitch(), Metrics()
    breaker_counts, caps, given_up = BreakerCounts(context), budgets.CurrentCaps(), AdaptiveDecisions(context)
    webhooks = WebhookDeliveries(
        topology,
        context.address,
        context.publish,
        context.store,
        allow_private=context.limits.private_webhooks,
        on_delivery=metrics.count_webhook_delivery,
    )

    def use(changed: Topology) -> None:
        context.use(changed)
        webhooks.use(changed)
        metrics.show_webhooks(one.name for one in changed.webhooks)

    metrics.show_webhooks(one.name for one in topology.webhooks)
    outbox = Outbox(
        context.store,
        context.address,
        context.names,
        on_published=metrics.count_events,
        on_status=metrics.show_events,
        full_batch=settings.batch_size,
    )
    service = build_service(
        topology,
        settings.address,
        Store(dsn, who, largest_payload=settings.largest_payload),
        migrate=lambda: migrate(dsn),
        intake=switch,
        background={
            "cancel reconciler": partial(cancel_reconciler.run, context),
            "pause reconciler": partial(
                pause_reconciler.run, context, watchers=_watchers(metrics), counts=breaker_counts
            ),
            "action log": partial(action_log.run, context.store),
            "caps": lambda stop: budgets.run(context, stop, caps.use),
            "adaptive": given_up.run,
            "intake": lambda stop: intake.run(context, stop, switch.set),
            "review": partial(review_work.run, context),
            **_stuck_recovery(context, settings),
            **({"events": outbox.run, "webhooks": webhooks.run} if topology.events.enabled else {}),
        },
        batch=settings.batch_size,
        write_actions=action_writer(settings.log_format, settings.service_name),
        files=(settings.topology_folder, settings.read_topology),
        on_topology=use,
        keeper=_audit_pass(context, settings, who) if every else None,
        look_every=every.total_seconds() if every else 0.0,
        metrics=metrics,
        count_returned=breaker_counts.add_returned,
        count_failed=breaker_counts.add_failed,
        heartbeat=Heartbeat(context.store, who),
        caps=caps,
        errors_given_up=given_up,
        notes=lambda: [*outbox.troubles, *webhooks.troubles, *metrics.audit.troubles, *given_up.troubles],
        on_batch=outbox.note_requests,
        traces=span_sender(
            settings.service_name,
            {"server.address": settings.address.host, "server.port": settings.address.port},
            metrics.count_spans,
        ),
    )
    taps = [one for one in service.taps if one.queue == context.names.audit]
    breaker_counts.tap_is_behind = lambda: any(tap.is_behind for tap in taps)
    return service


def _watchers(metrics: Metrics) -> pause_reconciler.Watchers:
    return pause_reconciler.Watchers(
        on_held=metrics.count_held,
        on_look=metrics.show_paused,
        on_breakers=metrics.show_breakers,
        on_breaker_change=metrics.count_breaker_change,
    )


def _stuck_recovery(context: OperatorContext, settings: Settings) -> dict[str, BackgroundTask]:
    """If it is switched off, it finishes only what operators have begun."""
    every = span_of(settings.recover_stuck_every)
    seconds = FINISH_EVERY if every is None else every.total_seconds()
    return {"stuck recovery": partial(stuck.run, context, every=seconds, recover=every is not None)}


def _audit_pass(context: OperatorContext, settings: Settings, who: str) -> AuditPass:
    upkeep = AuditPassRules(
        quiet=span_of(settings.presume_after),
        keep=span_of(settings.keep_history),
        keep_payloads=span_of(settings.keep_payloads),
        statistics=StatisticsRules(span_of(settings.keep_hourly_statistics), span_of(settings.keep_statistics)),
        lead_for=(span_of(settings.look_every) or timedelta(0)) + LONGEST_PASS,
    )
    names = settings.read_topology().broker_names
    management = Management(settings.address, timeout=MANAGEMENT_TIMEOUT)
    return AuditPass(settings.dsn, names, management, who, upkeep, context.stuck_limits)


def actor() -> str:
    """Who writes to the audit: a new name at every start, so that a new process can take over from a dead one."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


async def _serve(
    topology: Topology, settings: Settings, who: str, listener: socket.socket, parent: Parent | None
) -> None:
    private = settings.webhook_allow_private == "on"
    limits = OperatorLimits(stuck_after=span_of(settings.stuck_after), private_webhooks=private)
    check = CreditCheck.of(settings)
    async with OperatorContext.open(
        topology, settings.address, settings.dsn, actor=who, limits=limits, check=check
    ) as context:
        await _serve_with(context, _service(context, topology, settings, who), settings, listener, parent)
        _exit_soon()


def _exit_soon() -> None:
    """All work is done: a Postgres that does not answer must not keep the process alive while connections close."""
    last = threading.Timer(LAST_CLOSE_SECONDS, os._exit, [0])
    last.daemon = True
    last.start()


async def _serve_with(
    context: OperatorContext, service: Service, settings: Settings, listener: socket.socket, parent: Parent | None
) -> None:
    from tarry.web.app import limits_of, make_app, make_server  # noqa: PLC0415 - as above

    stop = asyncio.Event()
    _on_signals(stop, service)
    telling = asyncio.create_task(_tell_ready(parent, service, stop)) if parent is not None else None
    server = make_server(make_app(service, settings, context), limits_of(settings))
    http = asyncio.create_task(server.serve([listener]))
    host, port = listener.getsockname()[:2]
    log.info(
        "started",
        broker=str(service.address),
        http=f"{host}:{port}",
        batch=settings.batch_size,
        topology=described(service.topology),
        **({"traces": service.traces.endpoint} if service.traces is not None else {}),
    )
    try:
        await service.run(stop)
    finally:
        if telling is not None:
            telling.cancel()
        server.should_exit = server.force_exit = True
        await asyncio.wait([http], timeout=HTTP_CLOSE_SECONDS)
        log.info("stopped")


async def _tell_ready(parent: Parent, service: Service, stop: asyncio.Event) -> None:
    """Tells the parent when requests are delivered for the first time, and stops if the parent is gone."""
    parent.watch(stop)
    while service.troubles:
        if await sleep_unless(stop, READY_EVERY):
            return
    parent.tell_ready()


def _on_signals(stop: asyncio.Event, service: Service) -> None:
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    if service.reload is not None:
        loop.add_signal_handler(signal.SIGHUP, service.reload.asked.set)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed."""
    _tune_garbage_collection()
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _tune_garbage_collection() -> None:
    """Imported objects stay for good, and a batch creates thousands of objects that reference counting frees:
    collecting at the default thresholds took a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def register(app: typer.Typer) -> None:
    app.command("serve")(_serve_command)


def _serve_command(
    *,
    folder: TopologyFolder = None,
    log_format: Annotated[str | None, typer.Option("--log", envvar="TARRY_LOG", help="json or console.")] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            envvar="TARRY_PROCESSES",
            metavar="N",
            show_default="1",
            help="Run N router processes. Their HTTP ports count up from HTTP_PORT.",
        ),
    ] = None,
    settings_file: SettingsFile = None,
    given: Given = None,
    parent: Annotated[str | None, typer.Option(PARENT_OPTION, hidden=True)] = None,
) -> None:
    """Run the service, which routes retry requests and keeps the audit.

    `tarry config` shows its settings.
    """
    flags = _flags(topology=folder, log_format=log_format, processes=processes)
    settings = load_settings(settings_file, **(given_from(given or []) | flags))
    if parent is not None:
        serve(settings, Parent.parse(parent))
    elif settings.processes == 1:
        serve(settings)
    else:
        options = _flags(topology=folder, log=log_format, settings=settings_file)
        arguments = [f"--{name}={value}" for name, value in options.items()]
        raise typer.Exit(serve_several(settings, [*arguments, *(f"--set={pair}" for pair in given or [])]))


def _flags(**flags: object) -> dict[str, object]:
    """The flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}

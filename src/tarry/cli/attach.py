"""`tarry attach` and `tarry detach`: which queues send their rejects to tarry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.attach.apply import AttachProgress, AttachRequest, make_plans
from tarry.attach.apply import attach as carry_out
from tarry.attach.detach import DetachPlan, detach_plans
from tarry.attach.detach import detach as take_back
from tarry.attach.listing import AttachmentState, attachments
from tarry.attach.merge import DELIVERY_LIMIT, MergeOptions
from tarry.attach.plan import AttachPlan
from tarry.attach.report import attach_report, detach_report, state_report
from tarry.attach.snapshot import BrokerSnapshot, read_snapshot
from tarry.cli.attach_view import show_attachments, show_detached, show_plan, show_unfinished
from tarry.cli.options import (
    DEFAULT_URL,
    AsJson,
    CaFile,
    ManagementUrl,
    TopologyFolder,
    Url,
    address_from,
    topology_from,
)
from tarry.cli.output import note, print_json, progress_bar, waiting
from tarry.cli.streams import exit_code, terminable
from tarry.core.durations import parse_duration
from tarry.core.names import Names
from tarry.errors import SettingsError, TarryError
from tarry.topology.model import Topology
from tarry.topology.retire import SETTLING_SECONDS

Queues = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUEUE", help="Names, or globs in quotes: 'orders.*'.", show_default=False),
]
Exchanges = Annotated[
    list[str] | None,
    typer.Option("--exchange", metavar="NAME", help='An exchange that a policy returns to (return_to = "exchange").'),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]


def register(app: typer.Typer) -> None:
    """Both are top-level commands: they are the first that a user needs."""
    app.command()(attach)
    app.command()(detach)


def attach(
    queues: Queues = None,
    *,
    exchange: Exchanges = None,
    show: Annotated[bool, typer.Option("--list", help="List attachments, and whether they are intact.")] = False,
    dry_run: DryRun = False,
    delivery_limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=f"{DELIVERY_LIMIT}, or what the queue has",
            help="Deliveries without ack or reject before a message counts as failed (quorum queues).",
        ),
    ] = None,
    consumer_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Requeue deliveries that are not settled for this long, as in 30m."),
    ] = None,
    replace_dead_letter: Annotated[
        bool, typer.Option("--replace-dead-letter", help="Also attach where a policy sends dead letters elsewhere.")
    ] = False,
    probe: Annotated[bool, typer.Option(help="First test the round trip of a message on a twin of the queue.")] = True,
    topology: TopologyFolder = None,
    url: Url = DEFAULT_URL,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Route rejected messages of your queues to tarry.

    This sets a broker policy; consumers need no change.
    """
    made, address = topology_from(topology), address_from(url, management_url, ca_file)
    if show:
        list_attachments(read(address, made.broker_names), as_json=as_json)
        return
    require_some(queues, exchange)
    options = MergeOptions(delivery_limit, timeout_ms(consumer_timeout), replace_dead_letter)
    request = AttachRequest(queues or (), exchange or (), options, probe)
    plans = (
        make_plans(made, read(address, made.broker_names), request)
        if dry_run
        else attach_or_report(made, address, request, as_json=as_json)
    )
    if as_json:
        print_json([attach_report(plan, dry_run=dry_run) for plan in plans])
    else:
        for plan in plans:
            show_plan(plan, dry_run=dry_run)
        if probe and not dry_run and any(plan.policy for plan in plans):
            note("Tested on a twin of each kind of queue: a retry returns, and a reject is dead-lettered.")
    if any(plan.refused for plan in plans):
        raise typer.Exit(1)


def attach_or_report(made: Topology, address: Address, request: AttachRequest, *, as_json: bool) -> list[AttachPlan]:
    """If it is interrupted, or fails after the first change, report what is attached and what is not."""
    progress = AttachProgress()
    try:
        with terminable(), progress_bar("reading the broker", quiet=as_json) as bar:
            progress.on_step = lambda what, at, total: bar.update(
                bar.task_ids[0], description=what, completed=at, total=total
            )
            return carry_out(made, address, request, progress)
    except KeyboardInterrupt as stopped:
        report_unfinished(progress, as_json=as_json)
        done = len([plan for plan in progress.able if not progress.is_left(plan)])
        note(f"Stopped: {done} of {len(progress.able)} were attached. Run the same command again for the rest.")
        raise typer.Exit(exit_code(stopped)) from None
    except TarryError:
        if progress.done:
            report_unfinished(progress, as_json=as_json)
        raise


def report_unfinished(progress: AttachProgress, *, as_json: bool) -> None:
    if as_json:
        print_json([attach_report(plan, left=progress.is_left(plan)) for plan in progress.plans])
        return
    for plan in progress.plans:
        show_unfinished(plan, left=progress.is_left(plan))


def detach(
    queues: Queues = None,
    *,
    exchange: Exchanges = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove the return path even if waiting messages may need it.")
    ] = False,
    topology: TopologyFolder = None,
    url: Url = DEFAULT_URL,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove an attachment; your own policy applies again.

    Messages that wait in tiers still return.
    """
    made, address = topology_from(topology), address_from(url, management_url, ca_file)
    require_some(queues, exchange)
    if dry_run:
        plans = detach_plans(read(address, made.broker_names), queues or (), exchange or ())
    else:
        with waiting("Detaching", quiet=as_json):
            plans = detach_or_report(made, address, queues or (), exchange or (), force=force)
    if as_json:
        print_json([detach_report(plan, dry_run=dry_run) for plan in plans])
    else:
        for plan in plans:
            show_detached(plan, dry_run=dry_run)
    if any(plan.kept for plan in plans):
        raise typer.Exit(1)


def detach_or_report(
    made: Topology, address: Address, queues: Sequence[str], exchanges: Sequence[str], *, force: bool
) -> list[DetachPlan]:
    """If it is interrupted, report which queues no longer send rejects to tarry."""
    closed: list[DetachPlan] = []
    try:
        with terminable():
            return take_back(
                made,
                address,
                queues=queues,
                exchanges=exchanges,
                force=force,
                before_waiting=report_waiting,
                on_closed=closed.append,
            )
    except KeyboardInterrupt as stopped:
        names = ", ".join(plan.destination.name for plan in closed) or "none"
        note(f"Stopped. The policy is deleted: {names}. Run the same command again to remove bindings and relays.")
        raise typer.Exit(exit_code(stopped)) from None


def read(address: Address, names: Names) -> BrokerSnapshot:
    return read_snapshot(Management(address), names)


def report_waiting() -> None:
    note(f"Waiting {SETTLING_SECONDS:.0f} s for the broker's statistics, to be sure that no message still needs it …")


def require_some(queues: Sequence[str] | None, exchanges: Sequence[str] | None) -> None:
    if not (queues or exchanges):
        raise SettingsError(
            "Give at least one QUEUE, or --exchange NAME. `tarry attach --list` shows what is attached."
        )


def timeout_ms(text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"--consumer-timeout {error}") from None


def list_attachments(snapshot: BrokerSnapshot, *, as_json: bool) -> None:
    """Exit code 1 if one is not intact, for use in checks."""
    found = attachments(snapshot)
    if as_json:
        print_json([state_report(one) for one in found])
    else:
        show_attachments(found)
    if any(one.state is not AttachmentState.OK for one in found):
        raise typer.Exit(1)

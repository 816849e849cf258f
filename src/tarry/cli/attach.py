"""`tarry attach` and `tarry detach`: which queues send their rejects to tarry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tarry.attach.detach import detach as take_back
from tarry.attach.detach import detach_plans
from tarry.attach.listing import State, attachments
from tarry.attach.merge import DELIVERY_LIMIT, Options
from tarry.attach.perform import Request, make_plans
from tarry.attach.perform import attach as carry_out
from tarry.attach.report import attach_report, detach_report, state_report
from tarry.attach.survey import Survey, read_survey
from tarry.broker.address import Address
from tarry.broker.management import Management
from tarry.cli.attach_view import show_attachments, show_detached, show_plan
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
from tarry.cli.output import note, print_json
from tarry.core.durations import parse_duration
from tarry.core.names import Names
from tarry.errors import SettingsError
from tarry.topology.settle import SETTLING_SECONDS

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
    """Mount both at the top: they are what a user of tarry does first."""
    app.command()(attach)
    app.command()(detach)


def attach(
    queues: Queues = None,
    *,
    exchange: Exchanges = None,
    show: Annotated[bool, typer.Option("--list", help="What is attached, and whether it still is as it was.")] = False,
    dry_run: DryRun = False,
    delivery_limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=f"{DELIVERY_LIMIT}, or what the queue has",
            help="Deliveries that may end without ack or reject before it counts as a failure (quorum queues).",
        ),
    ] = None,
    consumer_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Take a delivery back that is not settled for so long, as in 30m."),
    ] = None,
    replace_dead_letter: Annotated[
        bool, typer.Option("--replace-dead-letter", help="Also where a policy sends dead letters elsewhere so far.")
    ] = False,
    probe: Annotated[bool, typer.Option(help="Prove the loop with a message on a twin of the queue first.")] = True,
    topology: TopologyFolder = None,
    url: Url = DEFAULT_URL,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Route the rejects of your queues into tarry, with a broker policy; the consumers need no change."""
    made, address = topology_from(topology), address_from(url, management_url, ca_file)
    if show:
        list_attachments(read(address, made.broker_names), as_json=as_json)
        return
    require_some(queues, exchange)
    options = Options(delivery_limit, timeout_ms(consumer_timeout), replace_dead_letter)
    request = Request(queues or (), exchange or (), options, probe)
    plans = (
        make_plans(made, read(address, made.broker_names), request) if dry_run else carry_out(made, address, request)
    )
    if as_json:
        print_json([attach_report(plan, dry_run=dry_run) for plan in plans])
    else:
        for plan in plans:
            show_plan(plan, dry_run=dry_run)
        if probe and not dry_run and any(plan.policy for plan in plans):
            note("Proven on a twin of each kind of queue: a retry comes home, and a reject comes out as a dead letter.")
    if any(plan.refused for plan in plans):
        raise typer.Exit(1)


def detach(
    queues: Queues = None,
    *,
    exchange: Exchanges = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Take the way home away although messages under way may need it.")
    ] = False,
    topology: TopologyFolder = None,
    url: Url = DEFAULT_URL,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Take an attachment back: your own policy applies again; what is under way still comes home."""
    made, address = topology_from(topology), address_from(url, management_url, ca_file)
    require_some(queues, exchange)
    if dry_run:
        plans = detach_plans(read(address, made.broker_names), queues or (), exchange or ())
    else:
        plans = take_back(
            made, address, queues=queues or (), exchanges=exchange or (), force=force, before_waiting=tell_waiting
        )
    if as_json:
        print_json([detach_report(plan, dry_run=dry_run) for plan in plans])
    else:
        for plan in plans:
            show_detached(plan, dry_run=dry_run)
    if any(plan.kept for plan in plans):
        raise typer.Exit(1)


def read(address: Address, names: Names) -> Survey:
    return read_survey(Management(address), names)


def tell_waiting() -> None:
    note(f"Waiting {SETTLING_SECONDS:.0f} s for the broker's own figures, to be sure that nothing is under way …")


def require_some(queues: Sequence[str] | None, exchanges: Sequence[str] | None) -> None:
    if not (queues or exchanges):
        raise SettingsError(
            "Say which: at least one QUEUE, or --exchange NAME. `tarry attach --list` shows what is attached."
        )


def timeout_ms(text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"--consumer-timeout {error}") from None


def list_attachments(survey: Survey, *, as_json: bool) -> None:
    """Exit code 1 when one is not as it should be, so that it can stand in a check."""
    found = attachments(survey)
    if as_json:
        print_json([state_report(one) for one in found])
    else:
        show_attachments(found)
    if any(one.state is not State.OK for one in found):
        raise typer.Exit(1)

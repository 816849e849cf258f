"""`tarry topology`: the broker as the files say, proven."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tarry.broker.management import Management
from tarry.cli import options as given
from tarry.cli import topology_view as view
from tarry.cli.generated import users_of, write_or_check
from tarry.cli.output import Commands, line, note, print_json, progress_bar, waiting
from tarry.core.durations import humanise
from tarry.errors import BrokerError
from tarry.topology.apply import apply as apply_topology
from tarry.topology.apply import refuse_old
from tarry.topology.blueprint import blueprint
from tarry.topology.definitions import definitions_text
from tarry.topology.explain import counted
from tarry.topology.live import read_live
from tarry.topology.mermaid import mermaid
from tarry.topology.plan import make_plan
from tarry.topology.prune import prune as prune_topology
from tarry.topology.retire import close_entry
from tarry.topology.retire import drain as drain_tier
from tarry.topology.schema import schema_text
from tarry.topology.svg import svg
from tarry.topology.verify import verify as verify_topology

CHANGES = 2

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Plan, apply and verify what tarry needs on the broker.")


class Format(StrEnum):
    """How `show` answers."""

    TABLE = "table"
    MERMAID = "mermaid"
    SVG = "svg"


@app.command()
def plan(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Show what is missing, different or left over on the broker. Exit code 0: nothing to do, 2: changes."""
    topology = given.topology_from(folder)
    live = read_live(Management(given.address_from(url, management_url, ca_file)))
    refuse_old(live.version)
    found = make_plan(topology.broker_names, blueprint(topology), live)
    if as_json:
        print_json(view.plan_json(topology, found, live.depths))
    else:
        view.print_plan(topology, found, live.depths)
    raise typer.Exit(0 if found.nothing_to_do else CHANGES)


@app.command()
def apply(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Declare what is missing on the broker. Nothing that is there is changed or deleted; safe to run again."""
    topology, address = given.topology_from(folder), given.address_from(url, management_url, ca_file)
    with progress_bar("Declaring", quiet=as_json) as bar:
        done = apply_topology(
            topology, address, lambda at, total, name: bar.update(bar.task_ids[0], completed=at, total=total, at=name)
        )
    if as_json:
        declared = view.blueprint_json(done.plan.missing)
        print_json({"declared": done.declared, "seconds": round(done.seconds, 3), "missing": declared})
    elif done.declared:
        line(f"Declared {done.declared} exchanges, queues and bindings in {done.seconds:.1f} s.", "✓", "bold green")
    else:
        line("Nothing to declare: all of it stands already.", "✓", "bold green")


@app.command()
def verify(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Check the live broker against the files, and say how to mend each finding. Exit code 1 if any is wrong."""
    topology, address = given.topology_from(folder), given.address_from(url, management_url, ca_file)
    found = verify_topology(topology, address)
    wrong = [finding for finding in found if finding.level == "wrong"]
    if as_json:
        print_json({"ok": not wrong, "findings": [view.finding_json(finding) for finding in found]})
    else:
        view.print_findings(found)
        if not wrong:
            line("The broker matches the topology.", "✓", "bold green")
    raise typer.Exit(1 if wrong else 0)


@app.command()
def export(
    *,
    folder: given.TopologyFolder = None,
    vhost: Annotated[str, typer.Option(help="The vhost that the definitions are for.")] = "/",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write there instead of to stdout.")] = None,
    check: Annotated[Path | None, typer.Option(help="Exit 1 if this file is not what would be written.")] = None,
    users: Annotated[
        bool, typer.Option("--users", help="Add a deploy user and a router user, least privilege.")
    ] = False,
    deploy_password_file: Annotated[
        Path | None, typer.Option(help="The deploy user's password; or set TARRY_DEPLOY_PASSWORD.")
    ] = None,
    router_password_file: Annotated[
        Path | None, typer.Option(help="The router user's password; or set TARRY_ROUTER_PASSWORD.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer is JSON with or without this.")] = False,
) -> None:
    """Write the topology as a definitions.json, for import at boot, by rabbitmqctl, or in the management UI."""
    del as_json
    topology = given.topology_from(folder)
    people = users_of(topology, deploy_password_file, router_password_file) if users else ()
    write_or_check(definitions_text(topology, vhost, people), output, check, "tarry topology export -o")


@app.command()
def schema(
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write there instead of to stdout.")] = None,
    check: Annotated[Path | None, typer.Option(help="Exit 1 if this file is not what would be written.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer is JSON with or without this.")] = False,
) -> None:
    """Write a JSON schema of the topology files, for completion and checks in an editor."""
    del as_json
    write_or_check(schema_text(), output, check, "tarry topology schema -o")


@app.command()
def show(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    style: Annotated[
        Format, typer.Option("--format", "-f", help="A table, or a picture for documents.")
    ] = Format.TABLE,
    as_json: given.AsJson = False,
) -> None:
    """Show the tiers, the ladder and the gates, with live depths if a broker answers."""
    topology = given.topology_from(folder)
    if style is Format.MERMAID:
        typer.echo(mermaid(topology), nl=False)
    elif style is Format.SVG:
        typer.echo(svg(topology), nl=False)
    else:
        depths = _depths(url, management_url, ca_file)
        if as_json:
            print_json(view.show_json(topology, depths))
        else:
            view.print_show(topology, depths)


@app.command()
def drain(
    tier: Annotated[str, typer.Argument(help="The queue of a tier that no policy uses any more.")],
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    wait: Annotated[
        bool, typer.Option(help="Wait until it is empty and delete it; else `prune` does it later.")
    ] = True,
    as_json: given.AsJson = False,
) -> None:
    """Close a retired tier's entry, wait until each message has left in its own time, then delete the queue."""
    topology, address = given.topology_from(folder), given.address_from(url, management_url, ca_file)
    close_entry(topology, address, tier)
    if not wait:
        _answer(as_json, {"drained": tier, "deleted": False}, f"Nothing enters {tier} any more.")
        return
    note(f"Nothing enters {tier} any more; waiting until it is empty. Ctrl-C is safe: `prune` deletes it later.")
    with waiting(f"Draining {tier}", quiet=as_json) as tell:
        drain_tier(topology, address, tier, lambda left, seconds: tell(_news(left, seconds)))
    _answer(as_json, {"drained": tier, "deleted": True}, f"{tier} is empty and deleted.")


@app.command()
def prune(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Delete retired tiers that are empty and that nothing leads to; the others are kept, with the reason."""
    topology, address = given.topology_from(folder), given.address_from(url, management_url, ca_file)
    with waiting("Making sure that they stay empty", quiet=as_json):
        done = prune_topology(topology, address)
    if as_json:
        print_json({"deleted": list(done.deleted), "kept": done.kept})
        return
    for name in done.deleted:
        line(f"{name} deleted", "✓", "bold green")
    for name, reason in done.kept.items():
        line(f"{name} kept: {reason}", "·", "bold yellow")
    if not done.deleted and not done.kept:
        line("Nothing is left over.", "✓", "bold green")


def _news(left: int, seconds: float) -> str:
    return f"{counted(left, 'message')} left, {humanise(seconds * 1000)} at most"


def _answer(as_json: bool, data: dict[str, object], text: str) -> None:
    if as_json:
        print_json(data)
    else:
        line(text, "✓", "bold green")


def _depths(url: str, management_url: str | None, ca_file: Path | None) -> dict[str, int] | None:
    try:
        live = read_live(Management(given.address_from(url, management_url, ca_file), timeout=3))
    except BrokerError as error:
        note(f"Depths are not shown. {error}")
        return None
    return dict(live.depths)

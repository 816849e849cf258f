"""`tarry topology`: the broker as the files say, proven."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tarry.broker.management import Management
from tarry.cli import options as given
from tarry.cli import topology_init, topology_retire
from tarry.cli import topology_view as view
from tarry.cli.generated import users_of, write_or_check
from tarry.cli.output import Commands, line, note, print_json, progress_bar
from tarry.errors import BrokerError, TopologyError
from tarry.topology.apply import apply as apply_topology
from tarry.topology.apply import read_supported
from tarry.topology.checks.files import concerns
from tarry.topology.definitions import definitions_text
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import read_live
from tarry.topology.mermaid import mermaid
from tarry.topology.plan import make_plan
from tarry.topology.record import described
from tarry.topology.schema import schema_text
from tarry.topology.svg import svg
from tarry.topology.verify import verify as verify_topology

CHANGES = 2

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Plan, apply and verify what tarry needs on the broker.")
topology_init.register(app)


class PlanCommand(TyperCommand):
    """Elsewhere a wrong flag or setting means exit code 2. Here 2 means changes, so it gets the code of wrong files."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _bad_input_is_no_change():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _bad_input_is_no_change():
            return super().invoke(ctx)


@contextmanager
def _bad_input_is_no_change() -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if getattr(error, "exit_code", None) == CHANGES:
            error.exit_code = TopologyError.exit_code  # type: ignore[attr-defined] # it has one: see above
        raise


class Format(StrEnum):
    """How `show` answers."""

    TABLE = "table"
    MERMAID = "mermaid"
    SVG = "svg"


@app.command(cls=PlanCommand)
def plan(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Show what is missing, different or left over on the broker.

    Exit code 0: nothing to do; 2: changes; 1: the broker cannot be read; 7: the files, a setting or a flag is wrong.
    """
    topology, address = given.topology_from(folder), given.address_from(url, management_url, ca_file)
    live = read_supported(address)
    expected = Expected.of(topology, address.vhost)
    found, warnings = make_plan(expected.names, expected.blueprint, live), list(concerns(expected, live))
    if as_json:
        about = view.source_json(topology, live.applied(expected.names), warnings)
        print_json(about | view.plan_json(topology, found, live.depths))
    else:
        view.print_source(topology)
        view.print_warnings(warnings)
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
    """Declare what is missing on the broker, and record which topology was applied.

    Nothing that is there is changed or deleted; safe to run again.
    """
    topology, address = given.topology_from(folder), given.address_from(url, management_url, ca_file)
    warnings: list[Finding] = []

    def keep_or_print(finding: Finding) -> None:
        warnings.append(finding) if as_json else view.print_warnings([finding])

    if not as_json:
        view.print_source(topology)
    with progress_bar("Declaring", quiet=as_json) as bar:

        def show(at: int, total: int, name: str) -> None:
            bar.update(bar.task_ids[0], completed=at, total=total, at=name)

        done = apply_topology(topology, address, show, keep_or_print)
    if as_json:
        counted = {"declared": done.declared, "seconds": round(done.seconds, 3)}
        about = view.source_json(topology, done.record, warnings)
        print_json(about | counted | {"missing": view.blueprint_json(done.plan.missing)})
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
        findings = [view.finding_json(finding) for finding in found]
        print_json({"topology": view.topology_json(topology), "ok": not wrong, "findings": findings})
    else:
        view.print_source(topology)
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
    note(f"Topology: {described(topology)}")
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
            print_json({"topology": view.topology_json(topology)} | view.show_json(topology, depths))
        else:
            view.print_source(topology)
            view.print_show(topology, depths)


topology_retire.register(app)


def _depths(url: str, management_url: str | None, ca_file: Path | None) -> dict[str, int] | None:
    try:
        live = read_live(Management(given.address_from(url, management_url, ca_file), timeout=3))
    except BrokerError as error:
        note(f"Depths are not shown. {error}")
        return None
    return dict(live.depths)

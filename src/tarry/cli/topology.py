"""`tarry topology`: init, plan, apply, verify, export, schema and show; `topology_retire` adds drain and prune."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tarry.amqp.management import Management
from tarry.cli import options as given
from tarry.cli import topology_retire
from tarry.cli import topology_view as view
from tarry.cli.options import AsJson
from tarry.cli.output import Commands, line, note, print_json, progress_bar, waiting
from tarry.errors import BrokerError, Code, SettingsError, TarryError, TopologyMismatchError
from tarry.topology.apply import apply as apply_topology
from tarry.topology.apply import read_supported
from tarry.topology.checks.files import concerns
from tarry.topology.definitions import BrokerUser, definitions_text, deploy_user, router_user
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import read_live
from tarry.topology.model import Source, Topology
from tarry.topology.plan import make_plan
from tarry.topology.record import described
from tarry.topology.schema import schema_text
from tarry.topology.show import mermaid, svg
from tarry.topology.starter import write_starter
from tarry.topology.topology_operator import Cluster, operator_text
from tarry.topology.verify import verify as verify_topology


def write_or_check(text: str, output: Path | None, check: Path | None, command: str) -> None:
    if check is not None:
        if not check.is_file() or check.read_bytes() != text.encode():
            raise TopologyMismatchError(f"{check} is out of date. Regenerate it with: {command} {check}")
        note(f"{check} is up to date.")
    elif output is not None:
        _write(output, text)
        note(f"Wrote {output}.")
    else:
        typer.echo(text, nl=False)


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}.") from error


def users_of(topology: Topology, deploy_file: Path | None, router_file: Path | None) -> tuple[BrokerUser, ...]:
    return (
        deploy_user(topology, _password("deploy", deploy_file, "TARRY_DEPLOY_PASSWORD")),
        router_user(topology, _password("router", router_file, "TARRY_ROUTER_PASSWORD")),
    )


def _password(role: str, file: Path | None, variable: str) -> str:
    """There is no default password: nobody would change it."""
    try:
        found = file.read_text(encoding="utf-8").strip() if file else os.environ.get(variable, "")
    except OSError as error:
        raise SettingsError(f"The {role} user's password cannot be read: {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"The {role} user's password cannot be read: {file} is not UTF-8 text.") from error
    if not found:
        raise SettingsError(
            f"No password for the {role} user: give --{role}-password-file or set {variable}, or leave out --users."
        )
    return found


def register_init(app: typer.Typer) -> None:
    app.command()(init)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")] = Path("topology"),
    *,
    as_json: AsJson = False,
) -> None:
    """Write the shipped topology to a folder, as a starting point.

    The files have comments. Nothing is overwritten.
    """
    written = write_starter(folder)
    path = Source(folder).path
    if as_json:
        print_json({"folder": path, "files": [str(file.relative_to(folder)) for file in written]})
        return
    line(f"Wrote {len(written)} files to {path}.", "✓", "bold green")
    line("Next:")
    line(f"  1. Edit {folder}/tarry.toml and {folder}/policies/*.toml.")
    line(f"  2. export TARRY_TOPOLOGY={shlex.quote(path)}")
    line("     for the commands here, and for `tarry serve` wherever it runs.")
    line("  3. tarry topology plan     shows what would be declared on the broker.")
    line("  4. tarry topology apply    declares it.")


CHANGES = 2

READING = "Reading the broker"

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Plan, apply and verify the queues and exchanges of tarry.")
register_init(app)


class PlanCommand(TyperCommand):
    """Exit code 2 means changes here, so wrong flags and settings exit with the code of wrong files instead."""

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
            if isinstance(error, TarryError):
                error.code = Code.TOPOLOGY_INVALID
            else:
                error.exit_code = Code.TOPOLOGY_INVALID.exit_code  # type: ignore[attr-defined] # it has one: see above
        raise


class ExportFormat(StrEnum):
    """Output formats of `export`."""

    DEFINITIONS = "definitions"
    TOPOLOGY_OPERATOR = "topology-operator"


class Format(StrEnum):
    """Output formats of `show`."""

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
    with waiting(READING, quiet=as_json):
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
    """Declare what is missing on the broker.

    Records which topology was applied. Changes and deletes no queue or exchange; safe to run again. Bindings of an
    earlier version that bypass a gate are removed.
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
        changes = {"missing": view.blueprint_json(done.plan.missing), "former": view.bindings_json(done.plan.former)}
        print_json(about | counted | changes)
    elif done.declared:
        line(f"Declared {done.declared} exchanges, queues and bindings in {done.seconds:.1f} s.", "✓", "bold green")
    else:
        line("Nothing to declare: everything exists already.", "✓", "bold green")


@app.command()
def verify(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Compare the broker with the topology files.

    Each finding names its repair. Exits 1 if anything is wrong.
    """
    topology, address = given.topology_from(folder), given.address_from(url, management_url, ca_file)
    with waiting(READING, quiet=as_json):
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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")] = None,
    check: Annotated[Path | None, typer.Option(help="Write nothing; exit 1 if this file is out of date.")] = None,
    users: Annotated[
        bool, typer.Option("--users", help="Add a deploy user and a router user with least privilege.")
    ] = False,
    deploy_password_file: Annotated[
        Path | None, typer.Option(help="The deploy user's password; or set TARRY_DEPLOY_PASSWORD.")
    ] = None,
    router_password_file: Annotated[
        Path | None, typer.Option(help="The router user's password; or set TARRY_ROUTER_PASSWORD.")
    ] = None,
    style: Annotated[
        ExportFormat,
        typer.Option(
            "--format", "-f", help="A definitions file, or resources of the topology operator for Kubernetes."
        ),
    ] = ExportFormat.DEFINITIONS,
    cluster: Annotated[
        str, typer.Option("--cluster", help="The RabbitmqCluster of the resources; name or namespace/name.")
    ] = "rabbitmq",
    as_json: Annotated[
        bool, typer.Option("--json", help="Accepted for consistency; the output is always JSON.")
    ] = False,
) -> None:
    """Write the topology as RabbitMQ definitions (JSON), or for the topology operator.

    Import definitions at boot, with rabbitmqctl, or in the management UI; give resources to `kubectl apply -f -`.
    """
    del as_json
    if style is ExportFormat.TOPOLOGY_OPERATOR and users:
        raise SettingsError(
            "--users is for definitions: with the topology operator, create User and Permission resources with the "
            "permissions that `tarry topology export --users` shows."
        )
    topology = given.topology_from(folder)
    people = users_of(topology, deploy_password_file, router_password_file) if users else ()
    note(f"Topology: {described(topology)}")
    if style is ExportFormat.TOPOLOGY_OPERATOR:
        namespace, _, name = cluster.rpartition("/")
        text, command = operator_text(topology, Cluster(name, namespace or None), vhost), " --format topology-operator"
    else:
        text, command = definitions_text(topology, vhost, people), ""
    write_or_check(text, output, check, f"tarry topology export{command} -o")


@app.command()
def schema(
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")] = None,
    check: Annotated[Path | None, typer.Option(help="Write nothing; exit 1 if this file is out of date.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Accepted for consistency; the output is always JSON.")
    ] = False,
) -> None:
    """Write a JSON schema of the topology files, for editors."""
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
        Format, typer.Option("--format", "-f", help="A table, or a diagram for documents.")
    ] = Format.TABLE,
    as_json: given.AsJson = False,
) -> None:
    """Show the tiers, the ladder and the gates, with live queue depths."""
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

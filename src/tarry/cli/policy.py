"""`tarry policy`: the policies as they apply, with what they inherit.

Exit codes: 0 done; 2 wrong usage, or the topology files have a mistake; 4 there is no such policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tarry.cli import options as given
from tarry.cli.output import Commands, line, print_json, print_table, table
from tarry.cli.topology_view import print_source, topology_json
from tarry.topology.model import Topology
from tarry.topology.resolved import Origin, Shown, Value, shown_policies, shown_policy
from tarry.topology.toml_file import toml_value

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Show policies with what they inherit from others.")


@app.command("show")
def show_policy(
    name: Annotated[str, typer.Argument(help="A policy, or a base such as gentle.")],
    *,
    folder: given.TopologyFolder = None,
    everything: Annotated[bool, typer.Option("--all", help="Show defaults too.")] = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="A table to paste, with everything that it inherits.")
    ] = False,
    as_json: given.AsJson = False,
) -> None:
    """Show a policy or base with all its values, and where each comes from."""
    topology = given.topology_from(folder)
    found = shown_policy(topology, name)
    if as_json:
        print_json({"topology": topology_json(topology), "policy": _json(found)})
    elif as_toml:
        typer.echo(found.toml(), nl=False)
    else:
        print_source(topology)
        _print(found, topology, everything=everything)


@app.command("list")
def list_policies(*, folder: given.TopologyFolder = None, as_json: given.AsJson = False) -> None:
    """List the policies in the order in which they are tried, and the bases that they can extend."""
    topology = given.topology_from(folder)
    found = shown_policies(topology)
    if as_json:
        print_json({"topology": topology_json(topology), "policies": [_json(one) for one in found]})
        return
    print_source(topology)
    policies = table("policies, the first that matches applies", "policy", "match", "delays", "retries", "extends")
    bases = table("bases, which match nothing themselves", "base", "delays", "retries", "used by", "")
    for one in found:
        delays, retries = _delays(one), str(one.value("max_retries"))
        if one.kind == "policy":
            policies.add_row(one.name, _match(one), delays, retries, " → ".join(one.extends))
        else:
            kind = "shipped with tarry" if one.is_shipped else _place(one.file, None, topology)
            bases.add_row(one.name, delays, retries, ", ".join(one.used_by) or "-", kind)
    print_table(policies)
    print_table(bases)


def _json(found: Shown) -> dict[str, Any]:
    return asdict(found)


def _print(found: Shown, topology: Topology, *, everything: bool) -> None:
    where = "shipped with tarry" if found.is_shipped else _place(found.file, found.line, topology)
    extends = f", extends {' → '.join(found.extends)}" if found.extends else ""
    shown = table(f"{found.kind} {found.name} ({where}){extends}", "key", "value", "from")
    for one in found.values:
        if one.key not in ("name", "extends") and (everything or one.origin is not Origin.DEFAULT):
            shown.add_row(one.key, toml_value(one.value), _origin(one, topology))
    print_table(shown)
    if found.used_by:
        line(f"extended by: {', '.join(found.used_by)}")


def _origin(value: Value, topology: Topology) -> str:
    if value.origin in (Origin.DEFAULT, Origin.ENVIRONMENT):
        return f"the {value.origin}" if value.origin is Origin.ENVIRONMENT else "default"
    place = _place(value.file or "", value.line, topology)
    if value.is_shipped:
        return f"{value.table} (shipped)"
    return place if value.origin is Origin.OWN else f"{value.table} ({place})"


def _place(file: str, at: int | None, topology: Topology) -> str:
    """The path within the topology folder, and the line."""
    path, source = Path(file), topology.source
    if source is not None and path.is_relative_to(source.folder):
        path = path.relative_to(source.folder)
    return f"{path}:{at}" if at else f"{path}"


def _match(found: Shown) -> str:
    globs = [f"{one.key.removeprefix('match.')} {one.value}" for one in found.values if one.key.startswith("match.")]
    return ", ".join(globs) or "everything"


def _delays(found: Shown) -> str:
    schedule = found.value("schedule")
    if schedule:
        return " ".join(schedule)
    return " ".join(_backoff(found))


def _backoff(found: Shown) -> Iterator[str]:
    """`2s × 2 up to 60s`; a base may have only a part of it."""
    base, factor, cap = (found.value(f"backoff.{key}") for key in ("base", "factor", "cap"))
    if base is not None:
        yield f"{base} × {factor or 2:g}"
    if cap is not None:
        yield f"up to {cap}"

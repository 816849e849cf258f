"""`tarry policy`: the policies as they apply, with what they inherit; and what others would have done to the history.

Exit codes: 0 done; 1 Postgres failed; 2 wrong usage; 4 there is no such policy, or nothing to replay; 7 a mistake in
the topology files or in the file to replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tarry.cli import options as given
from tarry.cli.control_view import plain
from tarry.cli.installation import moment
from tarry.cli.operator_command import operator_command
from tarry.cli.output import Commands, line, note, print_json, print_table, progress_bar, table
from tarry.cli.streams import read_stdin
from tarry.cli.topology_view import print_source, topology_json
from tarry.errors import SettingsError
from tarry.operations.policy_replay import MOST, PolicyReplay, ReplayFigures, ReplayRow, spell
from tarry.operations.protocol import Operations
from tarry.topology.model import Topology
from tarry.topology.resolved import Shown, Value, ValueOrigin, shown_policies, shown_policy
from tarry.topology.toml_file import BadFileError, read_text, toml_value

app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Show policies with what they inherit, and replay the history by others."
)


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
        if one.key not in ("name", "extends") and (everything or one.origin is not ValueOrigin.DEFAULT):
            shown.add_row(one.key, toml_value(one.value), _origin(one, topology))
    print_table(shown)
    if found.used_by:
        line(f"extended by: {', '.join(found.used_by)}")


def _origin(value: Value, topology: Topology) -> str:
    if value.origin in (ValueOrigin.DEFAULT, ValueOrigin.ENVIRONMENT):
        return f"the {value.origin}" if value.origin is ValueOrigin.ENVIRONMENT else "default"
    place = _place(value.file or "", value.line, topology)
    if value.is_shipped:
        return f"{value.table} (shipped)"
    return place if value.origin is ValueOrigin.OWN else f"{value.table} ({place})"


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


async def replay(
    *,
    operations: Operations,
    file: Annotated[str, typer.Argument(help="A file with [[policy]] and [[base]] tables; - is stdin.")],
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Messages that first failed since then: 7d, or 2030-01-31T12:00.")
    ] = "7d",
    most: Annotated[
        int, typer.Option("--limit", min=1, help="Of more messages, a part is replayed, by chance.")
    ] = MOST,
    as_json: given.AsJson = False,
) -> None:
    """Show what changed policies would have done to your own history, beside what happened.

    The tables of FILE replace the policies and bases of the same name; policies with new names come before all others.
    Changes nothing. A file with the policies as they are shows how far a replay can be trusted. With --api, at most
    10,000 messages are replayed.
    """
    text, began = _text_of(file), moment(since, "--since")
    if began is None:
        raise SettingsError("--since: give a duration such as 7d, or a time.")
    with progress_bar("replaying", quiet=as_json) as shown:
        found = await operations.replay_policies(
            text,
            since=began,
            label=file if file != "-" else "stdin",
            most=most,
            progress=lambda done, total: shown.update(shown.task_ids[0], completed=done, total=total),
        )
    if as_json:
        print_json(plain(asdict(found)))
    else:
        _print_replay(found)


app.command("replay")(operator_command(replay, only_looks=True))


def _text_of(file: str) -> str:
    if file == "-":
        return read_stdin()
    try:
        return read_text(Path(file))
    except BadFileError as error:
        raise SettingsError(f"{file}: {error}.") from None


def _print_replay(found: PolicyReplay) -> None:
    line(f"{found.messages:,} messages that first failed since {found.since:%Y-%m-%d %H:%M} UTC")
    if found.share < 1:
        line(f"a sample of {found.share:.1%}: the figures are scaled to all messages")
    for change in found.changes or ["nothing is changed: this shows how far a replay can be trusted"]:
        line(change, "~", "bold yellow")
    rows = found.policies if len(found.policies) > 1 else []
    for row in (*rows, found.total):
        _print_row(row)
    shown = table("most returns in a minute", "queue", *HEADINGS, right=HEADINGS, copied=("queue",))
    for one in found.destinations:
        shown.add_row(one.queue, *(f"{round(peak):,}" for peak in (one.history, one.current, one.changed)))
    print_table(shown)
    line(f"The policies as they are miss the history by {found.error_percent:g} % at most.")
    if found.left_out:
        line(f"Left out: {found.left_out:,} messages that an operator or a repair touched, or whose beginning is gone.")
    for assumption in found.assumptions:
        note(assumption)


HEADINGS = ("history", "replayed", "changed")

FIGURES = {
    "attempts": "attempts",
    "succeeded": "succeeded",
    "exhausted": "exhausted",
    "final": "final errors",
    "reviewed": "other reviews",
    "skipped": "skipped",
    "open": "not at an end",
    "success_mean_ms": "mean time to success",
    "success_p50_ms": "half succeeded within",
    "success_p95_ms": "95 % within",
}


def _print_row(row: ReplayRow) -> None:
    what = "all policies" if row.policy is None else f"policy {row.policy or '(none matches)'}"
    shown = table(f"{what}: {row.messages:,} messages", "", *HEADINGS, right=HEADINGS)
    each = (row.history, row.current, row.changed)
    for name, heading in FIGURES.items():
        cells = [_cell(figures, name) for figures in each]
        if any(cell not in ("0", "-") for cell in cells):
            shown.add_row(heading, *cells)
    shown.add_row("most returns in a minute", *(f"{round(one.peak_per_minute):,}" for one in each))
    print_table(shown)


def _cell(figures: ReplayFigures, name: str) -> str:
    return spell(getattr(figures, name), as_time=name.endswith("_ms"))

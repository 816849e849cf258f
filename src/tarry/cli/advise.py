"""`tarry advise`: what the history says about the policies, and the change of the file that follows from it.

Exit codes: 0 done, with advice or without; 1 Postgres failed; 2 wrong usage, or a change could not be made; 7 a mistake
in the topology files.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tarry.analytics.advise import Advice
from tarry.cli import options as given
from tarry.cli.control_view import plain
from tarry.cli.installation import moment
from tarry.cli.operator_command import operator_command
from tarry.cli.output import block, confirm, line, note, print_error, print_json, waiting
from tarry.errors import SettingsError
from tarry.operations.advice import PolicyAdvice
from tarry.operations.protocol import Operations
from tarry.settings import load_settings
from tarry.topology.policy_edit import edit_policy

NOT_MADE = 2


async def advise(
    *,
    operations: Operations,
    since: Annotated[str, typer.Option(metavar="WHEN", help="Retries since then: 7d, or 2030-01-31.")] = "7d",
    apply: Annotated[bool, typer.Option("--apply", help="Make the changes in the topology files, one by one.")] = False,
    yes: given.Yes = False,
    as_json: given.AsJson = False,
    topology: given.TopologyFolder = None,
) -> None:
    """Show what can be better about the policies, by what became of their retries.

    Each piece of advice has its evidence, and the table that changes the policy. With --apply, the change is made in
    the policy's file after a question: the rest of the file stays as it is, and what cannot be changed exactly is
    refused. `tarry policy replay` shows beforehand what a change would have done.
    """
    began = moment(since, "--since")
    if began is None:
        raise SettingsError("--since: give a duration such as 7d, or a time.")
    with waiting("Reading the history", quiet=as_json):
        found = await operations.advise_policies(since=began)
    if as_json:
        print_json(plain(asdict(found)))
    else:
        _print(found)
    if apply:
        _apply(found.advice, load_settings(topology=topology).topology_folder, yes=yes)


def register(app: typer.Typer) -> None:
    app.command("advise")(operator_command(advise))


def _print(found: PolicyAdvice) -> None:
    line(f"{found.retries:,} retries since {found.since:%Y-%m-%d}; {_number(len(found.advice))}")
    for one in found.advice:
        line("")
        line(f"{one.policy}: {one.what}", "!", "yellow")
        for text in one.evidence:
            line(f"  {text}")
        if one.no_change:
            line(f"  no change of the policy: {one.no_change}")
        if one.toml:
            line("")
            block("".join(f"  {text}\n" for text in one.toml.splitlines()).rstrip("\n"))
    for text in found.notes:
        note(text)


def _number(count: int) -> str:
    return "nothing to advise" if not count else "one piece of advice" if count == 1 else f"{count} pieces of advice"


def _apply(found: list[Advice], folder: Path, *, yes: bool) -> None:
    """Shows each change as a diff, asks, and writes it. One that cannot be made does not stop the others."""
    failed, written = False, set[Path]()
    for one in found:
        if one.change is None:
            continue
        try:
            edit = edit_policy(folder, one.policy, one.change.was, one.change.now)
            note(edit.diff().rstrip("\n"))
            confirm(f"{one.policy}: this changes {edit.path}.", yes=yes, why="It is not written yet")
            edit.write()
            written.add(edit.path)
        except SettingsError as error:
            print_error(error)
            failed = True
    for path in sorted(written):
        note(
            f"{path} is written. Services use it within seconds; if delays changed, `tarry topology plan` shows "
            "which tiers they need."
        )
    if failed:
        raise typer.Exit(NOT_MADE)

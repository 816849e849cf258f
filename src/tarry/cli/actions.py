"""`tarry actions`: the action log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tarry.cli.control_view import plain
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import line, print_json, print_table, shortened, table
from tarry.core.printable import printable
from tarry.operations.lookup import ActionRow
from tarry.operations.protocol import Operations

LONGEST = 80


def register(app: typer.Typer) -> None:
    app.command("actions")(operator_command(actions, only_looks=True))


async def actions(
    *,
    operations: Operations,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="The actor, exactly as recorded.")] = None,
    kind: Annotated[str | None, typer.Option(help="The kind, such as cancel, retry_now or pause.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="A retry id, a queue or a job; or the prefix of an id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of actions.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the action log: who did what, latest first."""
    found = (await operations.list_actions(actor=actor, kind=kind, target=target, limit=limit)).items
    if as_json:
        print_json([plain(asdict(one)) for one in found])
        return
    if found:
        show(found)
    else:
        line("no matching actions")


def show(found: Sequence[ActionRow]) -> None:
    shown = table("", "at", "actor", "what", "to", "why", "outcome", copied=("to",))
    for one in found:
        why = shortened(str(one.detail.get("reason") or ""), LONGEST)
        at = f"{one.at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(at, printable(one.actor), printable(one.kind), printable(one.target), why, _outcome(one))
    print_table(shown)


def _outcome(done: ActionRow) -> str:
    """The outcome in a few words."""
    if done.outcome is None:
        return "in progress, or interrupted"
    text = done.outcome.get("error") or done.outcome.get("answer") or "done"
    return shortened(str(text), LONGEST)

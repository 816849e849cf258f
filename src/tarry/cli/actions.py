"""`tarry actions`: who did what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tarry.cli.control_options import with_hands
from tarry.cli.control_port import Hands
from tarry.cli.control_view import plain
from tarry.cli.options import AsJson
from tarry.cli.output import line, print_json, print_table, table
from tarry.cli.printable import printable, shortened
from tarry.control.lookup import Done

LONGEST = 80


def register(app: typer.Typer) -> None:
    app.command("actions")(with_hands(actions, only_looks=True))


async def actions(
    *,
    hands: Hands,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Exactly as it is recorded.")] = None,
    kind: Annotated[str | None, typer.Option(help="As in cancel, retry_now, pause.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="A retry id, a queue, a job; or the beginning of an id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Who did what, from wherever: the latest first."""
    found = await hands.actions(actor, kind, target, limit=limit)
    if as_json:
        print_json([plain(asdict(one)) for one in found])
        return
    if found:
        show(found)
    else:
        line("nobody did anything of the kind")


def show(found: Sequence[Done]) -> None:
    shown = table("", "at", "actor", "what", "to", "why", "outcome", copied=("to",))
    for one in found:
        why = shortened(str(one.detail.get("reason") or ""), LONGEST)
        at = f"{one.at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(at, printable(one.actor), printable(one.kind), printable(one.target), why, _outcome(one))
    print_table(shown)


def _outcome(done: Done) -> str:
    """What came of it, in a few words."""
    if done.outcome is None:
        return "under way, or cut off"
    said = done.outcome.get("error") or done.outcome.get("answer") or "done"
    return shortened(str(said), LONGEST)

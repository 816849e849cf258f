"""`tarry adaptive`: errors that are given up because their retries do not succeed, and how to retry one again.

Exit codes: 0 done; 1 Postgres failed; 2 wrong usage; 4 the queue has no such error; 7 the topology files have errors.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from tarry.cli.control_view import plain
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson, Reason
from tarry.cli.output import Commands, line, list_by_default, note, print_json, print_table, shortened, table
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.operations.adaptive import AdaptiveList, ErrorChoice, ErrorChoiceChanged, GivenUp
from tarry.operations.protocol import Operations

MOST_LISTED = 200
LONGEST = 60

app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    help="List errors that are given up because their retries do not succeed; retry one again.",
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue.")]
Error = Annotated[str, typer.Argument(metavar="ERROR", help="The fingerprint of an error, or the beginning of it.")]


@app.callback()
def _overview(context: typer.Context, *, _as_json: AsJson = False) -> None:
    """Without a command, list them."""
    list_by_default(context)


async def list_given_up(
    *,
    operations: Operations,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only of this queue.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="How many to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the errors that are given up: queue, policy, error, evidence and since when; and what operators decided."""
    found = await operations.list_given_up(queue=queue, limit=limit)
    print_json(plain(asdict(found))) if as_json else _show(found)


async def retry(
    queue: Queue,
    error: Error,
    *,
    operations: Operations,
    always: Annotated[bool, typer.Option("--always", help="Never give it up, until `tarry adaptive auto`.")] = False,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Retry an error again.

    What happened until now is forgotten, and the error is judged by its outcomes from the next hour on. Messages that
    are in review stay there. Exits 4 if the queue has no such error.
    """
    answer = await operations.retry_error(queue, error, always=always, reason=reason)
    if as_json:
        print_json(plain(asdict(answer)))
    else:
        _show_retried(answer)


async def automatic(
    queue: Queue, error: Error, *, operations: Operations, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Judge an error by all of its history again: undoes `tarry adaptive retry`.

    Exits 4 if nothing is decided about the error.
    """
    answer = await operations.judge_error(queue, error, reason=reason)
    if as_json:
        print_json(plain(asdict(answer)))
    else:
        line(f"{_error(answer.choice)}: judged by all of its history again", "✓", "green")


app.command("list")(operator_command(list_given_up, only_looks=True))
app.command("retry")(operator_command(retry))
app.command("auto")(operator_command(automatic))


def _show_retried(answer: ErrorChoiceChanged) -> None:
    one = answer.choice
    how = "never given up" if one.always else "retried, and judged by what happens from now on"
    line(f"{_error(one)}: {how}", "✓", "green")
    if answer.without_effect:
        line("no policy of the queue has `adaptive`: this has no effect now", "!", "yellow")
    queue = shlex.quote(printable(one.queue))
    if answer.retried:
        note(f"what is in review: tarry review redrive --queue {queue} --fingerprint {one.error}")
    note(f"undo with: tarry adaptive auto {queue} {one.error}")


def _error(one: ErrorChoice) -> str:
    return f"{printable(one.queue)}: error {one.error}"


def _show(found: AdaptiveList) -> None:
    if found.not_applied is not None:
        line(f"nothing is given up now: {printable(found.not_applied)}", "!", "yellow")
    if found.given_up:
        _show_given_up(found.given_up)
    elif not found.policies:
        line("no policy decides from history: see `adaptive` in the policies", "✓", "green")
    else:
        line("no error is given up", "✓", "green")
    if found.choices:
        _show_choices(found.choices)


def _show_given_up(found: Sequence[GivenUp]) -> None:
    columns = ("queue", "policy", "error", "succeeded", "since")
    shown = table("given up", *columns, right=("succeeded",), copied=("queue", "error"))
    for one in found:
        evidence = f"{one.succeeded:,} of {one.succeeded + one.failed:,}"
        shown.add_row(printable(one.queue), printable(one.policy), one.error, evidence, _ago(one.since))
    print_table(shown)
    for one in found:
        line(f"{one.error}: {_about(one)}")


def _show_choices(found: Sequence[ErrorChoice]) -> None:
    shown = table("retried by operators", "queue", "error", "", "by", "since", "why", copied=("queue", "error"))
    for one in found:
        how, why = "always" if one.always else "judged anew", shortened(one.reason or "", LONGEST)
        shown.add_row(printable(one.queue), one.error, how, printable(one.actor), _ago(one.at), why)
    print_table(shown)


def _about(one: GivenUp) -> str:
    parts = [part for part in (one.error_type, one.example) if part]
    return shortened(printable(": ".join(parts)), LONGEST) if parts else "an error about which nothing is known"


def _ago(at: datetime) -> str:
    return f"{humanise(max(0.0, (datetime.now(UTC) - at).total_seconds() * 1000))} ago"

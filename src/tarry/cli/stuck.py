"""`tarry stuck`: attempts that started and have no outcome, and their recovery.

Exit codes: 0 done; 1 the broker or Postgres failed, or some could not be recovered; 2 wrong usage; 3 recovered, and the
broker has not confirmed all messages yet; 4 an id is unknown; 5 the only one that is named cannot be recovered, or not
yet; 6 it is not stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from tarry.cli.control_view import plain
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson, Reason, Yes
from tarry.cli.output import (
    Commands,
    confirm,
    line,
    list_by_default,
    note,
    print_json,
    print_table,
    shortened,
    table,
    waiting,
)
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.operations.protocol import Operations
from tarry.operations.stuck import StuckAttempt, StuckRecovery, Wanted

PENDING = 3
MANY = 10
"""More attempts than this need a confirmation."""
MOST_LISTED = 200
LONGEST = 60

app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    help="List and recover attempts that started and have no outcome.",
)

Queue = Annotated[
    str | None, typer.Option(metavar="GLOB", help="Only those of a queue, or of a glob such as 'orders.*'.")
]


@app.callback()
def _overview(context: typer.Context, *, _as_json: AsJson = False) -> None:
    """Without a command, list them."""
    list_by_default(context)


async def list_stuck(
    *,
    operations: Operations,
    queue: Queue = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="How many to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List stuck attempts, the oldest first.

    An attempt is stuck if its consumer reported that it started, and no outcome followed for TARRY_STUCK_AFTER, or for
    `stuck_after` of its policy. First attempts are not known to tarry, nor are those of consumers that do not report.
    """
    found = await operations.list_stuck(queue=queue, limit=limit)
    print_json(plain([asdict(one) for one in found])) if as_json else _show(found)


async def recover(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Retry ids or their prefixes.")] = None,
    *,
    operations: Operations,
    queue: Queue = None,
    everything: Annotated[bool, typer.Option("--all", help="All stuck attempts.")] = False,
    to_review: Annotated[
        bool, typer.Option("--to-review", help="Send them to review, and not to their queue.")
    ] = False,
    at_once: Annotated[
        bool, typer.Option("--now", help="Do not wait until the consumer timeout of the queue has passed.")
    ] = False,
    reason: Reason = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Retry stuck attempts now, or send them to review.

    The stored message is sent again, as a new round that uses an attempt. The hung consumer may still finish, so this
    may be a second delivery; the history and the action log say so. Each attempt is recovered once. Exits 1 if some
    could not be recovered, 3 if the broker has not confirmed all of them yet, 4 if an id is unknown, 5 if the only one
    that is named cannot be recovered or not yet, 6 if it is not stuck.
    """
    wanted = Wanted(tuple(ids or ()), queue, everything, to_review, at_once, reason)
    wanted.check()
    if not yes:
        number = len(wanted.ids) or len(await operations.list_stuck(queue=queue, limit=MOST_LISTED))
        if number > MANY:
            more = " or more" if number == MOST_LISTED else ""
            confirm(f"This recovers {number}{more} stuck attempts.", yes=yes)
    with waiting("Recovering", quiet=as_json):
        answer = await operations.recover_stuck(wanted)
    print_json(plain(asdict(answer))) if as_json else _show_recovered(answer)
    if answer.problems:
        raise typer.Exit(1)
    if not all(one.confirmed for one in answer.recovered):
        raise typer.Exit(PENDING)


app.command("list")(operator_command(list_stuck, only_looks=True))
app.command("recover")(operator_command(recover))


def _show(found: Sequence[StuckAttempt]) -> None:
    if not found:
        line("no attempt is stuck", "✓", "green")
        return
    columns = ("retry id", "queue", "attempt", "for", "consumer", "recovery")
    shown = table("stuck attempts", *columns, right=("attempt", "for"), copied=("retry id", "queue"))
    for one in found:
        most = "" if one.max_retries is None else f" of {one.max_retries + 1}"
        shown.add_row(
            one.retry_id,
            printable(one.queue),
            f"{one.retry_count + 1}{most}",
            _span(datetime.now(UTC) - one.since),
            shortened(one.consumer or "?", LONGEST),
            _recovery(one),
        )
    print_table(shown)
    note("recover with: tarry stuck recover ID, or --queue GLOB, or --all")


def _recovery(one: StuckAttempt) -> str:
    if not one.kept:
        return "impossible: payload not kept"
    left = one.recovered_from - datetime.now(UTC)
    return "now" if left.total_seconds() <= 0 else f"in {_span(left)}"


def _span(length: timedelta) -> str:
    return humanise(max(0, round(length.total_seconds())) * 1000)


def _show_recovered(answer: StuckRecovery) -> None:
    for one in answer.recovered:
        where = "sent to review" if one.sent_to == "review" else "sent again"
        text = where if one.confirmed else f"to be {where} by the service: the broker has not confirmed it yet"
        mark, style = ("✓", "green") if one.confirmed else ("…", "yellow")
        line(f"{one.retry_id} (queue {printable(one.queue)}, round {one.round}): {text}", mark, style)
    for problem in answer.problems.values():
        line(problem, "✗", "red")
    if not answer.recovered and not answer.problems:
        line("no attempt that matches is stuck", "✓", "green")

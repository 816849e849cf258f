"""`tarry breakers`: circuit breakers, and how to keep one open or closed.

Exit codes: 0 done; 1 the broker or Postgres failed; 2 wrong usage; 4 no policy of the queue has a breaker, or the queue
is unknown; 7 the topology files have errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from tarry.cli.control import length_of
from tarry.cli.control_view import plain
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson, Reason
from tarry.cli.output import Commands, line, list_by_default, note, print_json, print_table, shortened, table
from tarry.core.breaker import BreakerState
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.operations.breaker import BreakerView
from tarry.operations.protocol import Operations

LONGEST = 60

app = typer.Typer(cls=Commands, invoke_without_command=True, help="List circuit breakers; keep one open or closed.")

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue.")]


@app.callback()
def _overview(context: typer.Context, *, _as_json: AsJson = False) -> None:
    """Without a command, list them."""
    list_by_default(context)


async def list_breakers(*, operations: Operations, as_json: AsJson = False) -> None:
    """List the breakers of all known queues: state, share of failures, next probe, policy, and why."""
    found = await operations.list_breakers()
    print_json(plain([asdict(one) for one in found])) if as_json else _show(found)


async def keep_open(
    queue: Queue,
    *,
    operations: Operations,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Automatic again after this long, as in 30m.")
    ] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Keep a breaker open: nothing returns to the queue.

    It stays open until `tarry breakers auto` or `close`, or for a time; then one message returns as a probe. Exits 4 if
    no policy of the queue has a breaker.
    """
    answer = await operations.open_breaker(queue, reason=reason, lasts=length_of(lasts))
    _answer(answer, f"tarry breakers auto '{printable(queue)}'", as_json=as_json)


async def keep_closed(
    queue: Queue,
    *,
    operations: Operations,
    reason: Annotated[str, typer.Option(help="Why; shown with the breaker and stored in the action log.")],
    as_json: AsJson = False,
) -> None:
    """Keep a breaker closed: messages return, whatever fails.

    The service releases what waits at 500 a second, unless an operator has paused the queue. Exits 4 if no policy of
    the queue has a breaker.
    """
    answer = await operations.close_breaker(queue, reason=reason)
    _answer(answer, f"tarry breakers auto '{printable(queue)}'", as_json=as_json)


async def automatic(queue: Queue, *, operations: Operations, reason: Reason = None, as_json: AsJson = False) -> None:
    """Let a breaker open and close by itself again.

    One that is open becomes half-open at once: one message returns as a probe. Exits 4 if no policy of the queue has a
    breaker.
    """
    _answer(await operations.free_breaker(queue, reason=reason), "", as_json=as_json)


app.command("list")(operator_command(list_breakers, only_looks=True))
app.command("open")(operator_command(keep_open))
app.command("close")(operator_command(keep_closed))
app.command("auto")(operator_command(automatic))


def _answer(found: BreakerView, undo: str, *, as_json: bool) -> None:
    if as_json:
        print_json(plain(asdict(found)))
        return
    line(f"{printable(found.queue)}: {_state(found)}", "✓", "green")
    if undo:
        note(f"automatic again with: {undo}")


def _show(found: Sequence[BreakerView]) -> None:
    if not found:
        line("no queue has a breaker: see `breaker` in the policies", "✓", "green")
        return
    columns = ("queue", "state", "since", "failed again", "next probe", "policy")
    shown = table("breakers", *columns, right=("failed again",), copied=("queue",))
    for one in found:
        share = f"{one.share:.0%} of {max(one.returned, one.failed):,}"
        shown.add_row(
            printable(one.queue), _state(one), _ago(one.since), share, _probe(one), printable(one.policy or "none")
        )
    print_table(shown)
    for one in found:
        _explain(one)


def _explain(one: BreakerView) -> None:
    """Why it is not closed, or who keeps it so."""
    name = printable(one.queue)
    if one.forced_by is not None:
        why = f": {shortened(one.forced_reason, LONGEST)}" if one.forced_reason else ""
        end = f" until {one.forced_until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if one.forced_until else ""
        line(f"{name}: kept {_word(one.state)} by {printable(one.forced_by)}{end}{why}", "!", "yellow")
    elif one.state is not BreakerState.CLOSED:
        rate = f", {one.rate} messages a second return" if one.rate else ""
        line(f"{name}: {_word(one.state)}: {printable(one.reason)}{rate}", "!", "yellow")
    if one.problem:
        line(f"{name}: {printable(one.problem)}")


def _word(state: BreakerState) -> str:
    return state.replace("_", "-")


def _state(one: BreakerView) -> str:
    return f"{_word(one.state)} (kept)" if one.forced_by else _word(one.state)


def _ago(at: datetime | None) -> str:
    return "" if at is None else f"{humanise(max(0.0, (datetime.now(UTC) - at).total_seconds() * 1000))} ago"


def _probe(one: BreakerView) -> str:
    if one.state is not BreakerState.OPEN:
        return "now" if one.state is BreakerState.HALF_OPEN else ""
    at = one.forced_until if one.forced_by else one.probe_at
    if at is None:
        return "not by itself"
    left = (at - datetime.now(UTC)).total_seconds() * 1000
    return f"in {humanise(left)}" if left > 0 else "due"

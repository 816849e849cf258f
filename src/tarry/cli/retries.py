"""`tarry retries`: list retries, and act on all that match.

Exit codes beyond the usual: 1 some were not processed as requested; 4 nothing matches; 5 another job has them; 130
interrupted, and the job is stopped.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson, Reason, Yes
from tarry.cli.output import Commands, block, line, note, payload_text, print_table, table
from tarry.cli.review import LARGE, Background, Rate, Watch, carry_out, created, watched
from tarry.cli.review_view import ago, cell, print_plain
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.errors import SettingsError
from tarry.operations.lookup import Order, RetryFilter
from tarry.operations.protocol import Operations
from tarry.operations.review.jobs import JobSpec

LONGEST = 40

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List retries, and cancel, retry, redrive or discard all that match.",
)


async def list_retries(
    *,
    operations: Operations,
    wanted: RetryFilter,
    due_first: Annotated[bool, typer.Option("--due-first", help="Only retries that wait, the next due first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Retries per page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after the previous page, which prints it.")] = None,
    as_json: AsJson = False,
) -> None:
    """List retries that match, without payloads."""
    order: Order | None = "due" if due_first else None
    found = await operations.list_retries(wanted, order=order, limit=limit, cursor=cursor)
    if as_json:
        print_plain({"items": [asdict(one) for one in found.items], "cursor": found.next})
        return
    if found.items:
        shown = table("retries", "retry id", "message", "queue", "state", "error", "due", copied=("retry id",))
        for one in found.items:
            message, error = cell(one.message_id or "", LONGEST), cell(one.error_type or "", LONGEST)
            due = "" if one.due is None else _until(one.due)
            shown.add_row(one.retry_id, message, cell(one.queue, LONGEST), one.state, error, due)
        print_table(shown)
    else:
        line("nothing matches" if found.next is None else "nothing matches among those that were searched")
    if found.next is not None:
        note(f"more with --cursor {found.next}")


def _until(due: datetime) -> str:
    left = round((due - datetime.now(UTC)).total_seconds())
    return f"in {humanise(left * 1000)}" if left > 0 else ago(due)


async def cancel(
    *,
    operations: Operations,
    wanted: RetryFilter,
    reason: Reason = None,
    rate: Rate = None,
    watch: Watch = None,
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel all waiting retries that match, so that they do not return.

    The selection is frozen and counted first. Each failure is listed. Ctrl-C stops the job, and `tarry review job`
    resumes it.
    """
    spec = JobSpec("cancel", rate=rate, watch=watched(watch), reason=reason)
    await _act(operations, spec, wanted, background=background, yes=yes, as_json=as_json)


async def retry_now(
    *,
    operations: Operations,
    wanted: RetryFilter,
    reason: Reason = None,
    rate: Rate = None,
    watch: Watch = None,
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send all waiting retries that match to their queues now. Frozen, counted and stopped as with `cancel`."""
    spec = JobSpec("retry_now", rate=rate, watch=watched(watch), reason=reason)
    await _act(operations, spec, wanted, background=background, yes=yes, as_json=as_json)


async def redrive(
    *,
    operations: Operations,
    wanted: RetryFilter,
    reason: Reason = None,
    rate: Rate = None,
    watch: Watch = None,
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Redrive all retries that match and are in review. `tarry review redrive` has more options, and other filters."""
    spec = JobSpec("redrive", rate=rate, watch=watched(watch), reason=reason)
    await _act(operations, spec, wanted, background=background, yes=yes, as_json=as_json)


async def discard(
    *,
    operations: Operations,
    wanted: RetryFilter,
    reason: Reason = None,
    rate: Rate = None,
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard all retries that match and are in review, with a reason."""
    spec = JobSpec("discard", rate=rate, reason=reason)
    await _act(operations, spec, wanted, background=background, yes=yes, as_json=as_json)


async def _act(
    operations: Operations, spec: JobSpec, wanted: RetryFilter, *, background: bool, yes: bool, as_json: bool
) -> None:
    """Freezes the selection, shows its number, and starts the job once that is confirmed."""
    if not wanted.conditions():
        raise SettingsError("Select retries with a filter such as --queue or --policy; --state scheduled selects all.")
    made = await created(operations, replace(spec, retries=wanted, prepared=True), as_json=as_json)
    if made.total > LARGE and not yes:
        try:
            await _confirm(made.kind, made.total)
        except BaseException:
            await operations.abandon_job(made.id)
            raise
    started = await operations.resume_job(made.id, here=not background)
    await carry_out(operations, started, background=background, as_json=as_json)


async def _confirm(kind: str, count: int) -> None:
    verb = kind.replace("_", " ")
    if not sys.stdin.isatty():
        raise SettingsError(f"This would {verb} {count:,} messages: add --yes to confirm.")
    if not await asyncio.to_thread(typer.confirm, f"{verb.capitalize()} {count:,} messages?", err=True):
        raise typer.Abort


async def edits(
    *,
    operations: Operations,
    called: Annotated[str, typer.Argument(metavar="ID", help="A retry id or its prefix.")],
    as_json: AsJson = False,
) -> None:
    """Show how a message was edited when it was redriven, with its payload before each edit."""
    found = await operations.list_edits(called)
    if as_json:
        print_plain([asdict(one) for one in found])
        return
    if not found:
        line("it was not edited")
    for one in found:
        line(f"{one.at:%Y-%m-%d %H:%M:%S} by {printable(one.actor)} in round {one.round}, job {one.job_id}:")
        block(json.dumps(one.changes, indent=2, ensure_ascii=False))
        line(f"payload before, {len(one.body):,} bytes:")
        block(payload_text(one.body) or f"(not text) {one.body[:LONGEST].hex(' ')}")


app.command("list")(operator_command(list_retries, only_looks=True))
app.command("cancel")(operator_command(cancel))
app.command("retry-now")(operator_command(retry_now))
app.command("redrive")(operator_command(redrive))
app.command("discard")(operator_command(discard))
app.command("edits")(operator_command(edits, only_looks=True))

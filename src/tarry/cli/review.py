"""`tarry review`: list, group and show messages in review; redrive, discard and export them; jobs.

Exit codes beyond the usual: 1 a message was not processed as requested, or queue and audit differ; 4 nothing matches;
5 another job or consumer has the message; 130 interrupted, and the job is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from tarry.cli.installation import duration
from tarry.cli.operator_command import Command, operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import INTERRUPTED, Commands, line, note, progress_bar, waiting
from tarry.cli.review_view import (
    plain,
    print_plain,
    show_checked,
    show_detail,
    show_groups,
    show_job,
    show_jobs,
    show_page,
    show_summary,
)
from tarry.core.durations import humanise
from tarry.errors import NotFoundError, SettingsError
from tarry.operations.protocol import Operations
from tarry.operations.review.browse import By, Filter, ReviewPayload
from tarry.operations.review.jobs import JobSpec, JobStatus
from tarry.operations.review.redrive import RedriveOptions, edits_from

app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    help="List, show, redrive, discard and export messages in review.",
)

QUEUE = "the review queue"

LARGE = 10
"""More messages than this need a confirmation."""

DOING = {"redrive": "redriving", "discard": "discarding", "cancel": "cancelling", "retry_now": "retrying"}

LOOK_EVERY = 0.5
"""Seconds between two updates of the progress bar."""

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Retry ids or their prefixes, or message ids.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help=f"Do not ask for confirmation of more than {LARGE} messages.")]
Rate = Annotated[float | None, typer.Option(metavar="N", show_default="no limit", help="Messages per second.")]
Watch = Annotated[
    str | None,
    typer.Option(
        "--watch",
        metavar="DURATION",
        help="Process 1, then 10, then 100 and so on. Watch for this long after each batch, as in 10s; stop if more "
        "than a tenth failed.",
    ),
]
Background = Annotated[
    bool, typer.Option("--background", help="Let `tarry serve` run the job; `tarry review job` shows its progress.")
]


class Side(StrEnum):
    """What messages can be grouped by."""

    QUEUE = "queue"
    REASON = "reason"
    FINGERPRINT = "fingerprint"
    OWNER = "owner"
    AGE = "age"


def _command(name: str, *, only_looks: bool = False) -> Callable[[Command], Command]:
    def register(function: Command) -> Command:
        app.command(name)(operator_command(function, only_looks=only_looks))
        return function

    return register


@app.callback()
def _overview(context: typer.Context, *, _as_json: AsJson = False) -> None:
    """Without a command, show the summary."""
    if context.invoked_subcommand is None:
        command_ = context.command.commands["summary"]  # type: ignore[attr-defined] # a group has them
        with command_.make_context("summary", [], parent=context) as alone:
            command_.invoke(alone)


@_command("summary", only_looks=True)
async def overview(*, operations: Operations, as_json: AsJson = False) -> None:
    """Show how many messages are in review, and the largest groups."""
    found = await operations.review_summary(Filter())
    sides: tuple[By, ...] = ("queue", "fingerprint", "age")
    groups = {by: await operations.review_groups(by, Filter(), limit=10) for by in sides}
    if as_json:
        print_plain(plain(found) | {"groups": plain(groups)})
        return
    show_summary(found, QUEUE)
    for by, some in groups.items():
        show_groups(by, some)


@_command("list", only_looks=True)
async def list_(
    *,
    operations: Operations,
    chosen: Filter,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Messages per page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after the previous page, which prints it.")] = None,
    as_json: AsJson = False,
) -> None:
    """List messages in review, oldest first, without payloads."""
    found, total = (
        await operations.list_review(chosen, limit=limit, cursor=cursor),
        await operations.review_summary(Filter()),
    )
    if as_json:
        print_plain({"items": found.items, "cursor": found.next, "in_audit": total.audit, "in_queue": total.queue})
        return
    if found.items:
        show_page(found)
    else:
        line("nothing in review matches")
    show_summary(total, QUEUE)


@_command("groups", only_looks=True)
async def groups(
    *,
    operations: Operations,
    chosen: Filter,
    by: Annotated[Side, typer.Option(help="What to group by.")] = Side.FINGERPRINT,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of groups.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Group the messages in review, largest group first."""
    found = await operations.review_groups(by.value, chosen, limit=limit)
    if as_json:
        print_plain(found)
    elif found:
        show_groups(by.value, found)
    else:
        line("nothing in review matches")


@_command("show", only_looks=True)
async def show(
    *,
    operations: Operations,
    called: Annotated[str, typer.Argument(metavar="ID", help="A retry id or its prefix, or a message id.")],
    payload: Annotated[bool, typer.Option("--payload", help="Also show headers and payload.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one message: why it is in review, its history, earlier edits."""
    with waiting("Looking for the message", quiet=as_json):
        found = await operations.show_review(called)
        content = await _payload(operations, found.retry_id) if payload else None
    if as_json:
        print_plain(plain(found) | (plain(content) if content else {}))
    else:
        show_detail(found, content, payload=payload)


async def _payload(operations: Operations, retry_id: str) -> ReviewPayload | None:
    try:
        return await operations.review_payload(retry_id)
    except NotFoundError:
        return None


@_command("check")
async def check(
    *,
    operations: Operations,
    adopting: Annotated[bool, typer.Option("--adopt", help="Record messages that the audit does not have.")] = False,
    closing: Annotated[
        bool, typer.Option("--close", help="Record messages that other consumers have taken as discarded.")
    ] = False,
    removing: Annotated[
        bool, typer.Option("--remove-leftovers", help="Remove messages that an interrupted job left in the queue.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the queue with the audit; exits 1 if they differ.

    Reads every message and leaves it in the queue. During the check, other consumers find the queue empty.
    """
    with waiting("Reading the review queue", quiet=as_json):
        done = await operations.check_review(adopt=adopting, close=closing, remove=removing)
    if as_json:
        print_plain(plain(done.now) | {"mended": plain(done.repaired)})
    else:
        show_checked(done.found, QUEUE)
        if done.repaired is not None:
            counts = done.repaired
            line(f"{counts.adopted:,} adopted, {counts.closed:,} closed, {counts.removed:,} removed")
    if done.now.differs:
        raise typer.Exit(1)


@_command("export")
async def export(
    *,
    operations: Operations,
    chosen: Filter,
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="A new or empty folder.")],
    ids: Ids = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Export messages that the audit does not have instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write messages to files and leave them in the queue.

    Writes the body of each message, a JSON file that describes it, and an index.
    """
    chosen = await _with_ids(operations, chosen, ids)
    if chosen.is_empty and not unknown:
        raise SettingsError("Select messages by id, or with a filter such as --queue; --queue '*' selects all.")
    with progress_bar("exporting", quiet=as_json) as bar:
        done = await operations.export_review(
            chosen, into, unknown=unknown, progress=lambda count: bar.update(bar.task_ids[0], completed=count)
        )
    if as_json:
        print_plain(done)
        return
    line(f"{done.count:,} written to {done.folder}", "✓", "green")
    if done.not_in_queue:
        note(f"{len(done.not_in_queue):,} are in the audit but not in the queue: see `tarry review check`.")


@_command("redrive")
async def redrive(
    *,
    operations: Operations,
    chosen: Filter,
    ids: Ids = None,
    keep_attempts: Annotated[
        bool,
        typer.Option(
            "--keep-attempts/--reset-attempts",
            help="Keep the count of retries and the age of the message; or set both to zero.",
        ),
    ] = False,
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Redrive to this queue instead of the one it failed in.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Wait this long first, as in 5m or 1h30m.")
    ] = None,
    rate: Rate = None,
    watch: Watch = None,
    edit_body: Annotated[
        Path | None,
        typer.Option(
            "--edit-body", metavar="FILE", help="Replace the payload by this file, `-` for stdin; the original is kept."
        ),
    ] = None,
    set_header: Annotated[
        list[str] | None,
        typer.Option(
            "--set-header", metavar="NAME=TEXT", help="Set a header; NAME:=JSON for other types than text. Repeatable."
        ),
    ] = None,
    drop_header: Annotated[
        list[str] | None, typer.Option("--drop-header", metavar="NAME", help="Remove a header. Repeatable.")
    ] = None,
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Redrive messages to the queue they failed in, or to another.

    The selection is frozen first; with --watch, growing batches are tried before the rest. Messages that another
    consumer takes meanwhile are reported, not duplicated. Ctrl-C stops the job; `tarry review job ID --resume` resumes
    it.
    """
    body = _read(edit_body)
    if body is not None and len(ids or ()) != 1:
        raise SettingsError("--edit-body is for one message: name it by its id.")
    edits = edits_from(set_header or (), drop_header or (), body)
    delay_ms = int(duration(delay, "--delay").total_seconds() * 1000) if delay else 0
    options = RedriveOptions(not keep_attempts, to, delay_ms, edits)
    spec = JobSpec("redrive", await _with_ids(operations, chosen, ids), options, rate, watch=watched(watch))
    await _confirm(operations, spec, "redrive", yes=yes)
    made = await created(operations, spec, here=not background, as_json=as_json)
    await carry_out(operations, made, background=background, as_json=as_json)


@_command("discard")
async def discard(
    *,
    operations: Operations,
    chosen: Filter,
    ids: Ids = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; recorded in the history.")] = "",
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard messages, with a reason.

    They leave the queue permanently; `tarry review export` can save them first.
    """
    spec = JobSpec("discard", await _with_ids(operations, chosen, ids), reason=reason)
    if not reason.strip():
        raise SettingsError("A discard needs a reason, which is recorded in the history: --reason '…'.")
    await _confirm(operations, spec, "discard", yes=yes)
    made = await created(operations, spec, here=not background, as_json=as_json)
    await carry_out(operations, made, background=background, as_json=as_json)


@_command("jobs")
async def jobs(
    *,
    operations: Operations,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of jobs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs with their progress, newest first."""
    found = await operations.list_jobs(limit=limit)
    if as_json:
        print_plain(found)
    elif found:
        show_jobs(found)
    else:
        note("There are no jobs.")


@_command("job")
async def job(
    *,
    operations: Operations,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="A job id or its prefix.")],
    stop: Annotated[bool, typer.Option("--stop", help="Stop the job after its current batch.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the job, here unless --background.")] = False,
    resend_unconfirmed: Annotated[
        bool,
        typer.Option(
            "--resend-unconfirmed",
            help="Resume the job and resend unconfirmed messages; some may be delivered twice.",
        ),
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="End the job permanently; unprocessed messages stay in review.")
    ] = False,
    background: Background = False,
    as_json: AsJson = False,
) -> None:
    """Show one job and its problems; stop, resume or abandon it."""
    found = await operations.show_job(job_id)
    if stop + (resume or resend_unconfirmed) + abandon > 1:
        raise SettingsError("Use only one of --stop, --resume and --abandon.")
    if resume or resend_unconfirmed:
        found = await operations.resume_job(found.id, resend_unconfirmed=resend_unconfirmed, here=not background)
        await carry_out(operations, found, background=background, as_json=as_json)
        return
    if stop:
        found = await operations.stop_job(found.id)
    if abandon:
        found = await operations.abandon_job(found.id)
    await _show_result(operations, found, as_json=as_json)


def watched(text: str | None) -> timedelta | None:
    return duration(text, "--watch") if text is not None else None


async def _with_ids(operations: Operations, chosen: Filter, ids: list[str] | None) -> Filter:
    return replace(chosen, ids=await operations.review_ids(ids)) if ids else chosen


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise SettingsError(f"--edit-body {path}: {error.strerror}.") from None


async def _confirm(operations: Operations, spec: JobSpec, verb: str, *, yes: bool) -> None:
    """Ask before a large job, unless --yes was given."""
    if yes or spec.chosen.is_empty:
        return
    ids = spec.chosen.ids
    count = len(ids) if ids is not None else (await operations.review_summary(spec.chosen)).fits
    if count <= LARGE:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"This would {verb} {count:,} messages: add --yes to confirm.")
    if not await asyncio.to_thread(typer.confirm, f"{verb.capitalize()} {count:,} messages?", err=True):
        raise typer.Abort


async def created(operations: Operations, spec: JobSpec, *, here: bool = False, as_json: bool) -> JobStatus:
    """A new job, whose messages are selected now."""
    with waiting("Selecting messages", quiet=as_json):
        return await operations.create_job(spec, here=here)


async def carry_out(operations: Operations, made: JobStatus, *, background: bool, as_json: bool) -> None:
    if background:
        note(f"`tarry serve` runs the job: see `tarry review job {made.id}`")
        await _show_result(operations, made, as_json=as_json)
        return
    stop = asyncio.Event()
    with progress_bar(DOING[made.kind], quiet=as_json) as bar:
        async with _interruptible(stop), _watched(operations, made.id, bar):
            done = await operations.work_on_job(made.id, stop)
    if stop.is_set() and done.finished_at is None:
        done = await operations.stop_job(made.id)
        note(f"stopped: resume with `tarry review job {made.id} --resume`")
    await _show_result(operations, done, as_json=as_json)
    if stop.is_set():
        raise typer.Exit(INTERRUPTED)
    if done.gone or done.failed or done.unconfirmed or done.finished_at is None:
        raise typer.Exit(1)


async def _show_result(operations: Operations, found: JobStatus, *, as_json: bool) -> None:
    problems = await operations.job_problems(found.id, limit=100)
    if as_json:
        print_plain(plain(found) | {"problems": problems})
    else:
        show_job(found, problems)


@contextlib.asynccontextmanager
async def _interruptible(stop: asyncio.Event) -> AsyncIterator[None]:
    """Ctrl-C stops after the current batch instead of in the middle of it."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextlib.asynccontextmanager
async def _watched(operations: Operations, job_id: str, bar: Progress) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            now = await operations.show_job(job_id)
            at = f"{now.speed or 0:,.0f}/s, {humanise(now.eta_seconds * 1000)} left" if now.eta_seconds else ""
            bar.update(bar.task_ids[0], completed=now.total - now.left, total=now.total, at=at)
            await asyncio.sleep(LOOK_EVERY)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await watching

"""`tarry review retry`, `discard`, `jobs`, `job`: decisions, and how far they are carried out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from tarry.cli.installation import duration
from tarry.cli.options import AsJson
from tarry.cli.output import INTERRUPTED, note, progress_bar
from tarry.cli.review_options import command
from tarry.cli.review_port import Reviews
from tarry.cli.review_view import plain, print_plain, show_job, show_jobs
from tarry.control.review.edits import edits_from
from tarry.control.review.filters import Filter
from tarry.control.review.job import Order, Stands
from tarry.control.review.resend import Manner
from tarry.core.durations import humanise
from tarry.errors import SettingsError

LARGE = 10
"""More than so many are asked about first."""

LOOK_EVERY = 0.5

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Retry ids, their beginnings, or message ids.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help=f"Do not ask, however many there are (more than {LARGE}: asks).")
]
Rate = Annotated[float | None, typer.Option(metavar="N", show_default="as fast as it goes", help="So many a second.")]
Background = Annotated[
    bool, typer.Option("--background", help="Leave the work to `tarry serve`; see `tarry review job`.")
]


def register(app: typer.Typer) -> None:
    for name, function in (("retry", retry), ("discard", discard), ("jobs", jobs), ("job", job)):
        command(app, name)(function)


async def retry(
    *,
    reviews: Reviews,
    chosen: Filter,
    ids: Ids = None,
    one_more: Annotated[
        bool,
        typer.Option("--one-more/--fresh", help="Keep the count, so that one more failure is the last; or count anew."),
    ] = False,
    to: Annotated[str | None, typer.Option(metavar="QUEUE", help="Another queue than the one it failed in.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Not at once, but in 5m or 1h30m.")] = None,
    rate: Rate = None,
    edit_body: Annotated[
        Path | None,
        typer.Option("--edit-body", metavar="FILE", help="A new payload, `-` for stdin; the old one is kept."),
    ] = None,
    set_header: Annotated[
        list[str] | None, typer.Option("--set-header", metavar="NAME=TEXT", help="Or NAME:=JSON. May be given again.")
    ] = None,
    drop_header: Annotated[
        list[str] | None, typer.Option("--drop-header", metavar="NAME", help="May be given again.")
    ] = None,
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send messages on: to where they failed, or elsewhere. The selection is frozen first; what another consumer takes
    meanwhile is reported, not doubled. Stop it with Ctrl-C, and go on later.
    """
    body = _read(edit_body)
    if body is not None and len(ids or ()) != 1:
        raise SettingsError("--edit-body is for one message: name it by its id.")
    edits = edits_from(set_header or (), drop_header or (), body)
    delay_ms = int(duration(delay, "--delay").total_seconds() * 1000) if delay else 0
    manner = Manner(not one_more, to, delay_ms, edits)
    order = Order("redrive", await with_ids(reviews, chosen, ids), manner, rate)
    await _confirm(reviews, order, "send on", yes=yes)
    await _carry_out(reviews, await reviews.create(order, here=not background), background=background, as_json=as_json)


async def discard(
    *,
    reviews: Reviews,
    chosen: Filter,
    ids: Ids = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stays in the history.")] = "",
    background: Background = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Throw messages away, with a reason. They leave the queue for good; export them first if in doubt."""
    order = Order("discard", await with_ids(reviews, chosen, ids), reason=reason)
    if not reason.strip():
        raise SettingsError("A discard needs a reason, which stays in the history: --reason '…'.")
    await _confirm(reviews, order, "throw away", yes=yes)
    await _carry_out(reviews, await reviews.create(order, here=not background), background=background, as_json=as_json)


async def jobs(
    *,
    reviews: Reviews,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Jobs, newest first: what they do, and how far they are."""
    found = await reviews.jobs(limit=limit)
    if as_json:
        print_plain(found)
    elif found:
        show_jobs(found)
    else:
        note("No job was ever made.")


async def job(
    *,
    reviews: Reviews,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="A job's id, or its beginning.")],
    stop: Annotated[bool, typer.Option("--stop", help="Stop it before the next message.")] = False,
    go_on: Annotated[bool, typer.Option("--go-on", help="Go on with it, here unless --background.")] = False,
    resend_doubtful: Annotated[
        bool, typer.Option("--resend-doubtful", help="Go on, and send again what is in doubt: some may come twice.")
    ] = False,
    end: Annotated[bool, typer.Option("--end", help="Never go on: what is left stays in review.")] = False,
    background: Background = False,
    as_json: AsJson = False,
) -> None:
    """One job with its problems; stop it, go on with it, or end it."""
    found = await reviews.job(job_id)
    if stop + (go_on or resend_doubtful) + end > 1:
        raise SettingsError("One at a time: --stop, --go-on or --end.")
    if go_on or resend_doubtful:
        found = await reviews.go_on(found.id, resend_doubtful=resend_doubtful, here=not background)
        await _carry_out(reviews, found, background=background, as_json=as_json)
        return
    if stop:
        found = await reviews.stop(found.id)
    if end:
        found = await reviews.end(found.id)
    await _tell(reviews, found, as_json=as_json)


async def with_ids(reviews: Reviews, chosen: Filter, ids: list[str] | None) -> Filter:
    return replace(chosen, ids=await reviews.resolve(ids)) if ids else chosen


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise SettingsError(f"--edit-body {path}: {error.strerror}.") from None


async def _confirm(reviews: Reviews, order: Order, verb: str, *, yes: bool) -> None:
    """Before anything large, unless somebody has said yes to it."""
    if yes or order.chosen.is_empty:
        return
    count = await reviews.count(order.chosen)
    if count <= LARGE:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"This would {verb} {count:,} messages: add --yes if that is what you want.")
    if not await asyncio.to_thread(typer.confirm, f"{verb.capitalize()} {count:,} messages?", err=True):
        raise typer.Abort


async def _carry_out(reviews: Reviews, made: Stands, *, background: bool, as_json: bool) -> None:
    if background:
        note(f"`tarry serve` works on it: see `tarry review job {made.id}`")
        await _tell(reviews, made, as_json=as_json)
        return
    stop = asyncio.Event()
    with progress_bar("sending on" if made.kind == "redrive" else "throwing away", quiet=as_json) as bar:
        async with _interruptible(stop), _watched(reviews, made.id, bar):
            done = await reviews.work(made.id, stop)
    if stop.is_set() and done.finished_at is None:
        done = await reviews.stop(made.id)
        note(f"stopped: go on with `tarry review job {made.id} --go-on`")
    await _tell(reviews, done, as_json=as_json)
    if stop.is_set():
        raise typer.Exit(INTERRUPTED)
    if done.gone or done.failed or done.in_doubt or done.finished_at is None:
        raise typer.Exit(1)


async def _tell(reviews: Reviews, found: Stands, *, as_json: bool) -> None:
    troubles = await reviews.problems(found.id, limit=100)
    if as_json:
        print_plain(plain(found) | {"problems": troubles})
    else:
        show_job(found, troubles)


@contextlib.asynccontextmanager
async def _interruptible(stop: asyncio.Event) -> AsyncIterator[None]:
    """Ctrl-C stops before the next message instead of in the middle of one."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextlib.asynccontextmanager
async def _watched(reviews: Reviews, job_id: str, bar: Progress) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            now = await reviews.job(job_id)
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

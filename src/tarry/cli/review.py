"""`tarry review`: what a person has to decide about.

Exit codes beyond the usual: 1 something did not go as asked, or queue and books differ; 4 nothing fits; 5 another job
or consumer has it; 130 interrupted, and the job stopped.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tarry.cli import review_act
from tarry.cli.options import AsJson
from tarry.cli.output import Commands, line, note, progress_bar
from tarry.cli.review_options import command
from tarry.cli.review_port import Reviews, at_this_desk
from tarry.cli.review_view import (
    plain,
    print_plain,
    show_checked,
    show_detail,
    show_groups,
    show_page,
    show_summary,
)
from tarry.control.review.filters import Filter
from tarry.control.review.listing import By
from tarry.errors import SettingsError

app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    help="What is in manual review: list it, look at it, send it on, throw it away, export it.",
)

QUEUE = "the review queue"


class Side(StrEnum):
    """What groups are made by."""

    QUEUE = "queue"
    REASON = "reason"
    FINGERPRINT = "fingerprint"
    AGE = "age"


@app.callback()
def _overview(context: typer.Context) -> None:
    """Without a command: how many, and in which groups."""
    if context.invoked_subcommand is None:
        command_ = context.command.commands["summary"]  # type: ignore[attr-defined] # a group has them
        with command_.make_context("summary", [], parent=context) as alone:
            command_.invoke(alone)


@command(app, "summary", only_looks=True)
async def overview(*, reviews: Reviews, as_json: AsJson = False) -> None:
    """How many there are in the queue and in the books, and the largest groups."""
    found = await reviews.summary()
    sides: tuple[By, ...] = ("queue", "fingerprint", "age")
    groups = {by: await reviews.groups(by, Filter(), limit=10) for by in sides}
    if as_json:
        print_plain(plain(found) | {"groups": plain(groups)})
        return
    show_summary(found, QUEUE)
    for by, some in groups.items():
        show_groups(by, some)


@command(app, "list", only_looks=True)
async def list_(
    *,
    reviews: Reviews,
    chosen: Filter,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Lines of one page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="From where the page before ended.")] = None,
    as_json: AsJson = False,
) -> None:
    """What is in review by the books, oldest first, and how many the queue holds. No payloads."""
    found, total = await reviews.page(chosen, limit=limit, cursor=cursor), await reviews.summary()
    if as_json:
        print_plain(plain(found) | {"in_books": total.books, "in_queue": total.queue})
        return
    if found.items:
        show_page(found)
    else:
        line("nothing in review fits")
    show_summary(total, QUEUE)


@command(app, "groups", only_looks=True)
async def groups(
    *,
    reviews: Reviews,
    chosen: Filter,
    by: Annotated[Side, typer.Option(help="What they have in common.")] = Side.FINGERPRINT,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many groups.")] = 50,
    as_json: AsJson = False,
) -> None:
    """What is in review, put together: the largest group first."""
    found = await reviews.groups(by.value, chosen, limit=limit)
    if as_json:
        print_plain(found)
    elif found:
        show_groups(by.value, found)
    else:
        line("nothing in review fits")


@command(app, "show", only_looks=True)
async def show(
    *,
    reviews: Reviews,
    called: Annotated[str, typer.Argument(metavar="ID", help="A retry id, the beginning of one, or a message id.")],
    payload: Annotated[bool, typer.Option("--payload", help="With headers and payload.")] = False,
    as_json: AsJson = False,
) -> None:
    """One message: why it is there, its history, how it was edited before."""
    found = await reviews.show(called, payload=payload)
    if as_json:
        print_plain(found)
    else:
        show_detail(found, payload=payload)


@command(app, "check")
async def check(
    *,
    reviews: Reviews,
    adopting: Annotated[bool, typer.Option("--adopt", help="Write what the books do not know into them.")] = False,
    closing: Annotated[
        bool, typer.Option("--close", help="Throw away in the books what other consumers have taken.")
    ] = False,
    removing: Annotated[
        bool, typer.Option("--remove-leftovers", help="Take out of the queue what a job was cut off from removing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at every message in the queue, take none, and say where queue and books differ; exits 1 if they do.

    For the seconds of the look other consumers find the queue empty.
    """
    desk = at_this_desk(reviews, "check")
    found = await desk.check()
    wanted = adopting or closing or removing
    mended = await desk.mend(found, adopting=adopting, closing=closing, removing=removing) if wanted else None
    after = await desk.check() if mended is not None else found
    if as_json:
        print_plain(plain(after) | {"mended": plain(mended)})
    else:
        show_checked(found, QUEUE)
        if mended is not None:
            line(f"{mended.adopted:,} adopted, {mended.closed:,} closed, {mended.removed:,} removed")
    if after.differs:
        raise typer.Exit(1)


@command(app, "export")
async def export(
    *,
    reviews: Reviews,
    chosen: Filter,
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="A new or empty folder.")],
    ids: review_act.Ids = None,
    unknown: Annotated[bool, typer.Option("--unknown", help="Those that the books do not know, instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write messages to files and leave them in the queue: body, all that is known of it as JSON, and an index."""
    desk = at_this_desk(reviews, "export")
    chosen = await review_act.with_ids(reviews, chosen, ids)
    if chosen.is_empty and not unknown:
        raise SettingsError("Say which: ids, or a filter such as --queue; --queue '*' means all.")
    with progress_bar("exporting", quiet=as_json) as bar:
        done = await desk.export(
            chosen, into, unknown=unknown, progress=lambda count: bar.update(bar.task_ids[0], completed=count)
        )
    if as_json:
        print_plain(done)
        return
    line(f"{done.count:,} written to {done.folder}", "✓", "green")
    if done.not_in_queue:
        note(f"{len(done.not_in_queue):,} are in the books and not in the queue: see `tarry review check`.")


review_act.register(app)

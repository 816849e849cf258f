"""How the review is shown. All that came from outside is escaped: see `printable`."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

import typer
from rich.text import Text

from tarry.cli.output import block, line, note, print_table, table
from tarry.cli.printable import payload_text, printable, shortened
from tarry.control.review.check import KINDS, Checked
from tarry.control.review.job import Problem, Stands
from tarry.control.review.listing import Detail, Group, Item, Listed, Summary
from tarry.core.durations import humanise

COPIED = ("retry id", "message", "queue")
SHOWN = 50
LONG = 60
PREVIEW = 256


def plain(value: Any) -> Any:
    """For JSON: moments as text, bytes as base64."""
    match value:
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case _ if is_dataclass(value) and not isinstance(value, type):
            return plain(asdict(value))
        case _:
            return value


def print_plain(data: Any) -> None:
    """JSON in ASCII: what came from outside says nothing to the terminal here either."""
    typer.echo(json.dumps(plain(data), indent=2))


def cell(text: str | None, most: int = LONG) -> Text:
    """Never read as markup."""
    return Text(shortened(text, most))


def ago(moment: datetime) -> str:
    return f"{humanise(max(0.0, (datetime.now(moment.tzinfo) - moment).total_seconds() * 1000))} ago"


def show_summary(found: Summary, queue: str) -> None:
    if found.queue is None:
        line(f"{found.books:,} in review by the books; the broker does not say what {queue} holds")
        return
    line(f"{found.books:,} in review by the books, {found.queue:,} in {queue}")
    if found.books != found.queue:
        note("They differ: `tarry review check` looks at each message and says why.")


def show_groups(by: str, found: Sequence[Group]) -> None:
    if not found:
        return
    shown = table(f"by {by}", by, "number", "oldest", "newest", "queue", "for example", right=("number",), copied=(by,))
    for one in found:
        queue = one.queue if one.queues == 1 else f"{one.queues} queues"
        said = ": ".join(filter(None, (one.error_type, one.error_reason))) or one.reason
        key = one.key or ("(no queue)" if by == "queue" else "(none)")
        shown.add_row(key, f"{one.count:,}", ago(one.oldest), ago(one.newest), cell(queue, 40), cell(said))
    print_table(shown)


def show_page(found: Listed) -> None:
    shown = table("", "retry id", "message", "queue", "since", "tries", "error", "why", right=("tries",), copied=COPIED)
    for one in found.items:
        said = ": ".join(filter(None, (one.error_type, one.error_reason)))
        shown.add_row(
            one.retry_id, one.message_id or "", one.queue, ago(one.since), _tries(one), cell(said), cell(one.reason),
        )  # fmt: skip
    print_table(shown)
    if found.cursor:
        note(f"There are more: --cursor {found.cursor}")


def _tries(one: Item) -> str:
    return f"{one.retry_count}" + (f" of {one.max_retries}" if one.max_retries is not None else "")


def show_detail(found: Detail, *, payload: bool) -> None:
    one = found.item
    line(
        f"{printable(one.message_id or '(no message id)')} in {printable(one.queue or '(no queue)')}, round {one.round}"
    )
    line(f"  retry id {one.retry_id}, policy {one.policy or '-'}, {_tries(one)} retries")
    line(f"  in review since {one.since:%Y-%m-%d %H:%M:%S} ({ago(one.since)}): {printable(one.reason or '-')}")
    said = ": ".join(filter(None, (one.error_type, one.error_reason)))
    if said:
        line(f"  last error {printable(said)} (fingerprint {one.fingerprint})")
    line(f"  came by exchange {printable(found.exchange) or '(default)'}, key {printable(found.routing_key)}")
    if found.job_id:
        line(f"  in the hands of job {found.job_id}", "!", "yellow")
    shown = table("", "at", "round", "what", "by", "about", right=("round",))
    for step in found.steps:
        about = cell(step.reason, 100)
        shown.add_row(f"{step.at:%Y-%m-%d %H:%M:%S}", str(step.round), step.state, cell(step.actor, 40), about)
    print_table(shown)
    for edit in found.edits:
        changes = ", ".join(f"{name}: {value}" for name, value in edit.changes.items())
        line(f"edited {edit.at:%Y-%m-%d %H:%M:%S} by {printable(edit.actor)} ({printable(changes)}); original kept")
    if payload:
        _show_payload(found)
    elif one.size is None:
        note("Its payload is not in the books: --payload reads it from the queue.")


def _show_payload(found: Detail) -> None:
    if found.body is None:
        note("Its payload is neither in the books nor in the queue.")
        return
    about = dict(found.properties or {})
    headers = about.pop("headers", {})
    shown = table("headers and properties", "name", "value")
    for name, value in [*about.items(), *headers.items()]:
        shown.add_row(cell(str(name)), cell(str(value), 200))
    print_table(shown)
    text = payload_text(found.body)
    line(f"payload, {len(found.body):,} bytes:")
    more = " …" if len(found.body) > PREVIEW else ""
    block(text if text is not None else f"(not text) {found.body[:PREVIEW].hex(' ')}{more}")


def show_jobs(found: Sequence[Stands]) -> None:
    columns = ("job", "what", "state", "done", "of", "gone", "failed", "in doubt", "left", "eta", "by", "made")
    shown = table("", *columns, right=("done", "of", "gone", "failed", "in doubt", "left"), copied=("job",))
    for one in found:
        numbers = (one.done, one.total, one.gone, one.failed, one.in_doubt, one.left)
        eta = humanise(one.eta_seconds * 1000) if one.eta_seconds else ""
        made = ago(one.created_at)
        shown.add_row(one.id, one.kind, one.state, *(f"{n:,}" for n in numbers), eta, cell(one.actor, 40), made)
    print_table(shown)


def show_job(job: Stands, problems: Sequence[Problem]) -> None:
    verb = "sent on" if job.kind == "redrive" else "thrown away"
    line(f"job {job.id}: {job.state}, {job.done:,} of {job.total:,} {verb}", *_mark(job))
    for number, what in (
        (job.gone, "not in the queue any more: another consumer took them"),
        (job.failed, "could not be sent, and are still in review"),
        (job.skipped, "had moved on by themselves, or were left out when the job was ended"),
        (job.in_doubt, "in doubt: cut off while they were sent. `--go-on` looks again, `--resend-doubtful` sends them"),
        (job.left, "left"),
    ):
        if number:
            line(f"  {number:,} {what}")
    if job.eta_seconds:
        line(f"  {job.speed or job.rate:,.0f} a second, done in {humanise(job.eta_seconds * 1000)}")
    if job.problem:
        line(f"  last problem: {printable(job.problem)}", "!", "yellow")
    for one in problems[:SHOWN]:
        line(f"  {one.retry_id} round {one.round}: {one.state}, {printable(one.problem or '')}")
    if len(problems) > SHOWN:
        line("  …")


def _mark(job: Stands) -> tuple[str, str]:
    if job.state == "done":
        return ("✗", "red") if job.gone or job.failed or job.in_doubt else ("✓", "green")
    return "…", "yellow"


def show_checked(found: Checked, queue: str) -> None:
    line(f"{found.seen:,} in {queue}, {found.in_books:,} in review by the books")
    if found.elsewhere:
        note(f"{found.elsewhere:,} were in other consumers' hands when this began, and are in neither count.")
    if found.in_work:
        note(f"{found.in_work:,} are the business of a job: see `tarry review jobs`.")
    for kind, about in KINDS.items():
        some = [one for one in found.strangers if one.kind == kind]
        if some:
            line(f"{len(some):,} in the queue are {about}", "✗", "red")
            shown = table("", "retry id", "round", "message", "queue", "reason", "what the books say", copied=COPIED)
            for one in some[:SHOWN]:
                retry_id, round_ = one.key or ("", "")
                said = one.about if kind == "moved on" else ""
                shown.add_row(retry_id, str(round_), one.message_id or "", one.queue, cell(one.reason), said)
            print_table(shown)
    if found.gone:
        line(f"{len(found.gone):,} are in review by the books and not in the queue", "✗", "red")
        for key in found.gone[:SHOWN]:
            line(f"  {key[0]} round {key[1]}")
    if not found.differs:
        line("queue and books agree", "✓", "green")

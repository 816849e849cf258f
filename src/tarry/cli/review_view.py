"""Output of `tarry review`. Text from outside is escaped: see `printable`."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

import typer
from rich.text import Text

from tarry.cli.output import block, line, note, payload_text, print_table, shortened, table
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.operations.paging import Page
from tarry.operations.review.browse import Group, ReviewDetail, ReviewItem, ReviewPayload, Summary
from tarry.operations.review.jobs import JobProblem, JobStatus
from tarry.operations.review.reconcile import KINDS, QueueComparison

COPIED = ("retry id", "message", "queue")
SHOWN = 50
LONG = 60
PREVIEW = 256


def plain(value: Any) -> Any:
    """For JSON: times as text, bytes as base64."""
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
    """JSON in ASCII, so that text from outside cannot control the terminal."""
    typer.echo(json.dumps(plain(data), indent=2))


def cell(text: str | None, most: int = LONG) -> Text:
    """Text that rich does not read as markup."""
    return Text(shortened(text, most))


def ago(moment: datetime) -> str:
    return f"{humanise(max(0.0, (datetime.now(moment.tzinfo) - moment).total_seconds() * 1000))} ago"


def show_summary(found: Summary, queue: str) -> None:
    if found.queue is None:
        line(f"{found.audit:,} in review according to the audit; the depth of {queue} is not known")
        return
    line(f"{found.audit:,} in review according to the audit, {found.queue:,} in {queue}")
    if found.audit != found.queue:
        note("They differ: `tarry review check` compares each message and shows why.")


def show_groups(by: str, found: Sequence[Group]) -> None:
    if not found:
        return
    shown = table(f"by {by}", by, "number", "oldest", "newest", "queue", "for example", right=("number",), copied=(by,))
    for one in found:
        queue = one.queue if one.queues == 1 else f"{one.queues} queues"
        example = ": ".join(filter(None, (one.error_type, one.error_reason))) or one.reason
        key = one.key or ("(no queue)" if by == "queue" else "(none)")
        shown.add_row(key, f"{one.count:,}", ago(one.oldest), ago(one.newest), cell(queue, 40), cell(example))
    print_table(shown)


def show_page(found: Page[ReviewItem]) -> None:
    shown = table("", "retry id", "message", "queue", "since", "tries", "error", "why", right=("tries",), copied=COPIED)
    for one in found.items:
        error = ": ".join(filter(None, (one.error_type, one.error_reason)))
        shown.add_row(
            one.retry_id, one.message_id or "", one.queue, ago(one.since), _tries(one), cell(error), cell(one.reason),
        )  # fmt: skip
    print_table(shown)
    if found.next:
        note(f"There are more: --cursor {found.next}")


def _tries(one: ReviewItem) -> str:
    return f"{one.retry_count}" + (f" of {one.max_retries}" if one.max_retries is not None else "")


def show_detail(found: ReviewDetail, content: ReviewPayload | None, *, payload: bool) -> None:
    one = found
    line(
        f"{printable(one.message_id or '(no message id)')} in {printable(one.queue or '(no queue)')}, round {one.round}"
    )
    line(f"  retry id {one.retry_id}, policy {one.policy or '-'}, {_tries(one)} retries")
    if one.owner is not None:
        line(f"  owner {printable(one.owner)}")
    line(f"  in review since {one.since:%Y-%m-%d %H:%M:%S} ({ago(one.since)}): {printable(one.reason or '-')}")
    error = ": ".join(filter(None, (one.error_type, one.error_reason)))
    if error:
        line(f"  last error {printable(error)} (fingerprint {one.fingerprint})")
    line(f"  published to exchange {printable(found.exchange) or '(default)'}, key {printable(found.routing_key)}")
    if found.job_id:
        line(f"  claimed by job {found.job_id}", "!", "yellow")
    shown = table("", "at", "round", "what", "by", "about", right=("round",))
    for step in found.steps:
        about = cell(step.reason, 100)
        shown.add_row(f"{step.at:%Y-%m-%d %H:%M:%S}", str(step.round), step.state, cell(step.actor, 40), about)
    print_table(shown)
    for edit in found.edits:
        changes = ", ".join(f"{name}: {value}" for name, value in edit.changes.items())
        line(f"edited {edit.at:%Y-%m-%d %H:%M:%S} by {printable(edit.actor)} ({printable(changes)}); original kept")
    if payload:
        _show_payload(content)
    elif one.size is None:
        note("Its payload is not stored: --payload reads it from the queue.")


def _show_payload(found: ReviewPayload | None) -> None:
    if found is None:
        note("Its payload is neither stored nor in the queue.")
        return
    about = dict(found.properties)
    headers = about.pop("headers", {})
    shown = table("headers and properties", "name", "value")
    for name, value in [*about.items(), *headers.items()]:
        shown.add_row(cell(str(name)), cell(str(value), 200))
    print_table(shown)
    text = payload_text(found.body)
    line(f"payload, {len(found.body):,} bytes:")
    more = " …" if len(found.body) > PREVIEW else ""
    block(text if text is not None else f"(not text) {found.body[:PREVIEW].hex(' ')}{more}")


def show_jobs(found: Sequence[JobStatus]) -> None:
    columns = ("job", "what", "state", "done", "of", "gone", "failed", "unconfirmed", "left", "eta", "by", "created")
    shown = table("", *columns, right=("done", "of", "gone", "failed", "unconfirmed", "left"), copied=("job",))
    for one in found:
        numbers = (one.done, one.total, one.gone, one.failed, one.unconfirmed, one.left)
        eta = humanise(one.eta_seconds * 1000) if one.eta_seconds else ""
        created = ago(one.created_at)
        shown.add_row(one.id, one.kind, one.state, *(f"{n:,}" for n in numbers), eta, cell(one.actor, 40), created)
    print_table(shown)


DONE = {"redrive": "redriven", "discard": "discarded", "cancel": "cancelled", "retry_now": "retried"}


def show_job(job: JobStatus, problems: Sequence[JobProblem]) -> None:
    verb = DONE[job.kind]
    is_review = job.kind in ("redrive", "discard")
    line(f"job {job.id}: {job.state}, {job.done:,} of {job.total:,} {verb}", *_mark(job))
    for number, what in (
        (job.gone, "no longer in the queue: another consumer took them"),
        (job.failed, "could not be sent and are still in review" if is_review else "could not be diverted"),
        (job.skipped, "skipped: meanwhile in another state, or the job was abandoned"),
        (
            job.unconfirmed,
            "unconfirmed: interrupted while they were sent. `--resume` checks again, `--resend-unconfirmed` resends",
        ),
        (job.left, "left"),
    ):
        if number:
            line(f"  {number:,} {what}")
    if job.eta_seconds:
        line(f"  {job.speed or job.rate:,.0f} per second, done in {humanise(job.eta_seconds * 1000)}")
    if job.problem:
        line(f"  last problem: {printable(job.problem)}", "!", "yellow")
    for one in problems[:SHOWN]:
        line(f"  {one.retry_id} round {one.round}: {one.state}, {printable(one.problem or '')}")
    if len(problems) > SHOWN:
        line("  …")


def _mark(job: JobStatus) -> tuple[str, str]:
    if job.state == "done":
        return ("✗", "red") if job.gone or job.failed or job.unconfirmed else ("✓", "green")
    return "…", "yellow"


def show_checked(found: QueueComparison, queue: str) -> None:
    line(f"{found.seen:,} in {queue}, {found.in_audit:,} in review according to the audit")
    if found.elsewhere:
        note(f"{found.elsewhere:,} were unacknowledged at other consumers when the check began, and are not counted.")
    if found.in_work:
        note(f"{found.in_work:,} belong to a job: see `tarry review jobs`.")
    for kind, about in KINDS.items():
        some = [one for one in found.unknown if one.kind == kind]
        if some:
            line(f"{len(some):,} in the queue are {about}", "✗", "red")
            shown = table("", "retry id", "round", "message", "queue", "reason", "in the audit", copied=COPIED)
            for one in some[:SHOWN]:
                retry_id, round_ = one.key or ("", "")
                in_audit = one.about if kind == "moved on" else ""
                shown.add_row(retry_id, str(round_), one.message_id or "", one.queue, cell(one.reason), in_audit)
            print_table(shown)
    if found.gone:
        line(f"{len(found.gone):,} are in review according to the audit but not in the queue", "✗", "red")
        for key in found.gone[:SHOWN]:
            line(f"  {key[0]} round {key[1]}")
    if not found.differs:
        line("queue and audit agree", "✓", "green")

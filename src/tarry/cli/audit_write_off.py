"""`tarry audit write-off`: what is missing and cannot be brought back, closed by a person who says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tarry.audit.recover import with_lock
from tarry.audit.report import Report
from tarry.audit.verdict import Missing, Open
from tarry.cli.audit_options import Books, with_books
from tarry.cli.audit_view import show_missing, verdict_report
from tarry.cli.options import AsJson
from tarry.cli.output import line, note, print_json
from tarry.core.id_prefix import as_uuid, only, uuid_range
from tarry.core.states import State
from tarry.errors import AuditError

ACTOR = "tarry audit write-off"


def register(app: typer.Typer) -> None:
    app.command("write-off")(with_books(write_off_command))


def write_off_command(
    *,
    books: Books,
    retry_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RETRY_ID",
            help="Only these, by id or its beginning; without any, all that `recover` cannot bring back.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why nobody has to wait for them any more; it stays in their history.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it only shows what it would do.")] = False,
    as_json: AsJson = False,
) -> None:
    """Close what is missing for good: lost before its payload was kept, or claimed in a backup that was restored."""
    if not reason.strip():
        raise AuditError("--reason is empty: whoever reads the history later needs it.")
    look = books.auditor.settled()
    chosen = _chosen(look.verdict.missing, retry_ids or [])
    closed = _close(books.auditor.report, [one.retry for one in chosen], reason) if yes and chosen else []
    if as_json:
        print_json({"done": yes, "written_off": closed} | verdict_report(look.verdict))
        return
    show_missing(chosen)
    if yes:
        line(f"{len(closed):,} written off", "✓", "green")
        if len(closed) < len(chosen):
            line(f"{len(chosen) - len(closed):,} had moved on by themselves")
    elif chosen:
        note(f"This would write off {len(chosen):,}. Nothing was done yet: add --yes.")
    else:
        line("nothing is missing that `tarry audit recover` could not bring back", "✓", "green")


def _chosen(missing: Sequence[Missing], ids: Sequence[str]) -> list[Missing]:
    """Those that were named, each of which must be missing; or all that cannot be rebuilt."""
    if not ids:
        return [one for one in missing if not recoverable(one.retry)]
    found = {one.retry.retry_id: one for one in missing}
    whole = {given: _whole(given, missing) for given in ids}
    if present := [given for given, one in whole.items() if one not in found]:
        raise AuditError(
            f"Not missing: {', '.join(present)}. `tarry audit verify` lists what is, and `tarry history` says where "
            "these are. Nothing was done."
        )
    return [found[one] for one in dict.fromkeys(whole.values())]


def _whole(given: str, missing: Sequence[Missing]) -> str:
    """The one of them that begins so; a whole id as it is."""
    bounds = uuid_range(given)
    if bounds is None:
        return as_uuid(given) or given
    rows = [one.retry for one in missing if bounds.low <= one.retry.retry_id <= bounds.high]
    return only(given, [(one.retry_id, one.queue) for one in rows]) or given


def recoverable(retry: Open) -> bool:
    """Whether `recover` could send it again: what was only claimed has no payload in the books."""
    return retry.rebuildable and retry.state != State.CLAIMED


def _close(report: Report, rows: Sequence[Open], reason: str) -> list[str]:
    with_lock(report)
    ids, rounds = [row.retry_id for row in rows], [row.round for row in rows]
    return [row[0] for row in report.rows("written_off", ids=ids, rounds=rounds, reason=reason, actor=ACTOR)]

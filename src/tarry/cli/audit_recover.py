"""`tarry audit recover`: what the broker has lost, sent again from the books."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from tarry.audit.recover import Recovered, Recovery, recover_reviews
from tarry.audit.verdict import Open
from tarry.audit.verify import Auditor, Look
from tarry.cli.audit_options import Books, with_books
from tarry.cli.audit_view import show_recovered, show_verdict, verdict_report
from tarry.cli.installation import Installation
from tarry.cli.options import AsJson
from tarry.cli.output import line, note, print_json, progress_bar
from tarry.core.states import State
from tarry.errors import AuditError


def register(app: typer.Typer) -> None:
    app.command("recover")(with_books(recover_command))


def recover_command(
    *,
    books: Books,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it only shows what it would do.")] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Also what was in review, if the review queue is empty.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send again what the broker has lost, from the books, for what is left of each delay. Safe to run twice."""
    where, auditor = books.where, books.auditor
    look = auditor.settled()
    missing = [one.retry for one in look.verdict.missing if one.retry.state != State.CLAIMED]
    reviews = _reviews(auditor, look) if review else 0
    result = _recover(where, auditor, missing) if yes and missing else Recovered()
    sent_to_review = _recover_reviews(where, auditor) if yes and reviews else 0
    if as_json:
        done = asdict(result) | {"sent_to_review": sent_to_review}
        print_json({"done": yes, "reviews": reviews} | verdict_report(look.verdict) | done)
        return
    show_verdict(look)
    if yes:
        show_recovered(result)
        line(f"{sent_to_review:,} sent to review again") if reviews else None
    elif missing or reviews:
        note(f"This would send {len(missing):,} again, and {reviews:,} to review. Nothing was done yet: add --yes.")


def _recover(where: Installation, auditor: Auditor, missing: list[Open]) -> Recovered:
    with progress_bar("sending again") as bar:
        recovery = Recovery(
            auditor.report,
            where.topology,
            where.address,
            lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
        )
        return asyncio.run(recovery.run(missing))


def _reviews(auditor: Auditor, look: Look) -> int:
    depth = look.depths[auditor.names.review_queue]
    if not depth.known or depth.messages:
        raise AuditError(
            f"{auditor.names.review_queue} is not empty ({depth.messages}): sending all that was in review again would "
            "double those. Empty it first, or leave out --review."
        )
    return auditor.balance().in_review


def _recover_reviews(where: Installation, auditor: Auditor) -> int:
    with progress_bar("to review") as bar:
        return asyncio.run(
            recover_reviews(
                auditor.report,
                where.names,
                where.address,
                lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
            )
        )

"""`tarry audit`: the books."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tarry.audit.migrate import migrate
from tarry.audit.report import report
from tarry.audit.retention import prune
from tarry.cli import audit_recover, audit_write_off
from tarry.cli.audit_options import Books, with_books
from tarry.cli.audit_view import (
    balance_report,
    show_balance,
    show_verdict,
    verdict_report,
)
from tarry.cli.installation import DatabaseUrl, duration, moment
from tarry.cli.options import AsJson
from tarry.cli.output import Commands, line, print_json
from tarry.settings import load_settings

app = typer.Typer(cls=Commands, no_args_is_help=True, help="The books: what was scheduled, and what came back.")


@app.command("migrate")
def migrate_command(database_url: DatabaseUrl = None, *, as_json: AsJson = False) -> None:
    """Bring the audit's tables up to date."""
    applied = migrate(load_settings(database_url=database_url).dsn)
    if as_json:
        print_json({"applied": applied})
    else:
        line(f"applied: {', '.join(applied)}" if applied else "nothing to do: the tables are up to date")


@app.command("balance")
def balance_command(database_url: DatabaseUrl = None, *, as_json: AsJson = False) -> None:
    """How the books stand by themselves, without the broker; exits 1 if a retry is unaccounted for."""
    with report(load_settings(database_url=database_url).dsn) as books:
        balance, drift = books.balance(), books.drift()
    if as_json:
        print_json({"balance": balance_report(balance), "drift_ms": asdict(drift)})
    else:
        show_balance(balance)
    if balance.lost:
        raise typer.Exit(1)


@app.command("verify")
@with_books
def verify_command(
    *,
    books: Books,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Balance only what began since: 1h, or 2030-01-31T12:00.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Balance only what failed in this queue.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that no retry is lost: the books against the broker. Exits 1, with the list, if one is missing."""
    began = moment(since, "--since")
    look = books.auditor.settled()
    balance = books.auditor.balance(since=began, queue=queue)
    proven = not (look.verdict.lost or look.verdict.unjudged)
    if as_json:
        print_json({"ok": proven, "balance": balance_report(balance)} | verdict_report(look.verdict))
    else:
        show_balance(balance)
        show_verdict(look)
    if not proven:
        raise typer.Exit(1)


@app.command("prune")
def prune_command(
    *,
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="History and finished retries older than this go, as in 30d.")
    ],
    payloads_older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Payloads of finished retries go sooner, as in 1d.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Drop old history, whole days at once, and what is finished. What is open or in review stays, however old."""
    payloads = duration(payloads_older_than, "--payloads-older-than") if payloads_older_than else None
    pruned = prune(load_settings(database_url=database_url).dsn, duration(older_than, "--older-than"), payloads)
    if as_json:
        print_json(asdict(pruned))
    else:
        line(
            f"dropped {len(pruned.partitions)} days of history, {pruned.retries:,} finished retries, "
            f"{pruned.payloads:,} payloads"
        )


audit_recover.register(app)
audit_write_off.register(app)

"""`tarry audit`: the books."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tarry.audit.migrate import migrate
from tarry.audit.report import report
from tarry.cli.options import AsJson
from tarry.cli.output import Commands, line, print_json, print_table, table
from tarry.settings import load_settings

app = typer.Typer(cls=Commands, no_args_is_help=True, help="The books: what was scheduled, and what came back.")

DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", envvar="DATABASE_URL", help="Postgres: postgresql://user:password@host/tarry."),
]


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
    """How the books stand; exits 1 if a retry is unaccounted for."""
    with report(load_settings(database_url=database_url).dsn) as books:
        balance, drift = books.balance(), books.drift()
    if as_json:
        print_json({"balance": asdict(balance) | {"lost": balance.lost}, "drift_ms": asdict(drift)})
    else:
        shown = table("balance", "what", "number", right=("number",))
        for name, number in (asdict(balance) | {"lost": balance.lost}).items():
            shown.add_row(name.replace("_", " "), str(number))
        print_table(shown)
    if balance.lost:
        raise typer.Exit(1)

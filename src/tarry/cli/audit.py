"""`tarry audit`: the audit's totals, its comparison with the broker, recovery, write-off, pruning and migration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

import typer

from tarry.audit.verify import AuditRules
from tarry.cli.audit_view import (
    balance_report,
    show_attempts,
    show_balance,
    show_missing,
    show_recovered,
    show_verdict,
    verdict_report,
)
from tarry.cli.installation import DatabaseUrl, duration, moment
from tarry.cli.operator_command import Command, operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import Commands, line, note, print_json, progress_bar, waiting
from tarry.operations.audit import Progress
from tarry.operations.protocol import Operations
from tarry.settings import load_settings
from tarry.store.database import PostgresSession, migrate, open_session
from tarry.store.retention import prune

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Prove that no retry is lost, and recover missing ones.")

Grace = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="A retry this long past its due time that was not seen to return is overdue."
    ),
]
Settle = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="A message this close to the start or end of its wait is in flight, and not judged."
    ),
]
Patience = Annotated[
    str, typer.Option(metavar="DURATION", help="Repeat the comparison for this long while something is missing.")
]
OfferedAgain = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="How long the broker waits before it offers a message again that a queue did not take. Change it only if "
        "your broker is configured so.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this, only show what would be done.")]

COMPARING = "Comparing the audit with the broker"
COUNTING = "Counting the history"

T = TypeVar("T")


def _command(name: str, *, only_looks: bool = False) -> Callable[[Command], Command]:
    def register(function: Command) -> Command:
        app.command(name)(operator_command(function, only_looks=only_looks))
        return function

    return register


@app.command("migrate")
def migrate_command(database_url: DatabaseUrl = None, *, as_json: AsJson = False) -> None:
    """Create or update the tables of the audit."""
    dsn = load_settings(database_url=database_url).dsn
    with waiting("Updating the tables", quiet=as_json):
        applied = asyncio.run(migrate(dsn))
    if as_json:
        print_json({"applied": applied})
    else:
        line(f"applied: {', '.join(applied)}" if applied else "nothing to do: the tables are up to date")


@_command("balance", only_looks=True)
async def balance_command(*, operations: Operations, as_json: AsJson = False) -> None:
    """Show the totals of the audit, without asking the broker.

    Exits 1 if a retry is unaccounted for.
    """
    with waiting(COUNTING, quiet=as_json):
        found = await operations.balance()
    if as_json:
        print_json({"balance": balance_report(found.balance), "drift_ms": asdict(found.drift)})
    else:
        show_balance(found.balance)
    if found.balance.lost:
        raise typer.Exit(1)


@_command("attempts", only_looks=True)
async def attempts_command(
    *,
    operations: Operations,
    within: Annotated[
        str, typer.Option(metavar="DURATION", help="Count the retries that returned within this time.")
    ] = "24h",
    queue: Annotated[str | None, typer.Option(help="Count only retries that failed in this queue.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many retries of each attempt succeeded or failed again."""
    span = duration(within, "--within")
    with waiting(COUNTING, quiet=as_json):
        found = await operations.outcomes(span, queue=queue)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        show_attempts(found)


@_command("verify")
async def verify_command(
    *,
    operations: Operations,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Balance only retries that began since then: 1h, or 2030-01-31T12:00."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Balance only retries that failed in this queue.")] = None,
    as_json: AsJson = False,
    grace: Grace = "30s",
    settle: Settle = "2s",
    patience: Patience = "12s",
    offered_again: OfferedAgain = "180s",
) -> None:
    """Compare the audit with the broker, to prove that no retry is lost.

    Exits 1 and lists the missing retries if there are any.
    """
    rules = _rules(grace, settle, patience, offered_again)
    began = moment(since, "--since")
    with waiting(COMPARING, quiet=as_json):
        found = await operations.verify(rules, since=began, queue=queue)
    if as_json:
        print_json({"ok": found.ok, "balance": balance_report(found.balance)} | verdict_report(found.verdict))
    else:
        show_balance(found.balance)
        show_verdict(found.verdict, found.tiers)
    if not found.ok:
        raise typer.Exit(1)


@app.command("prune")
def prune_command(
    *,
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Delete history and finished retries older than this, as in 30d.")
    ],
    payloads_older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Delete payloads of finished retries sooner, as in 1d.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete old history and finished retries.

    History is dropped in whole days. Open retries and messages in review are kept, however old they are.
    """
    payloads = duration(payloads_older_than, "--payloads-older-than") if payloads_older_than else None
    history = duration(older_than, "--older-than")
    with waiting("Deleting", quiet=as_json) as update:

        def show(deleted: int) -> None:
            update(f"{deleted:,} rows")

        pruned = _with_session(database_url, lambda session: prune(session, history, payloads, progress=show))
    if as_json:
        print_json(asdict(pruned))
    else:
        line(
            f"dropped {len(pruned.partitions)} days of history, {pruned.retries:,} finished retries, "
            f"{pruned.payloads:,} payloads"
        )


@_command("recover")
async def recover_command(
    *,
    operations: Operations,
    yes: Yes = False,
    review: Annotated[
        bool, typer.Option("--review", help="Also publish messages that were in review, if the review queue is empty.")
    ] = False,
    as_json: AsJson = False,
    grace: Grace = "30s",
    settle: Settle = "2s",
    patience: Patience = "12s",
    offered_again: OfferedAgain = "180s",
) -> None:
    """Publish retries again that the broker has lost.

    They are read from the store, and each waits for the rest of its delay. Safe to run twice.
    """
    rules = _rules(grace, settle, patience, offered_again)
    with _recover_progress(quiet=as_json) as progress:
        found = await operations.recover(rules, review=review, execute=yes, progress=progress)
    if as_json:
        done = asdict(found.recovered) | {"sent_to_review": found.sent_to_review}
        print_json({"done": found.done, "reviews": found.reviews} | verdict_report(found.verdict) | done)
        return
    show_verdict(found.verdict, found.tiers)
    if found.done:
        show_recovered(found.recovered)
        line(f"{found.sent_to_review:,} published to review again") if found.reviews else None
    elif found.recoverable or found.reviews:
        note(
            f"This would publish {found.recoverable:,} again, and {found.reviews:,} to review. Nothing was done yet: "
            "add --yes."
        )


@_command("write-off")
async def write_off_command(
    *,
    operations: Operations,
    retry_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RETRY_ID",
            help="Only these, by id or its prefix; without any, all that `recover` cannot publish again.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why they are closed; recorded in their history.")],
    yes: Yes = False,
    as_json: AsJson = False,
    grace: Grace = "30s",
    settle: Settle = "2s",
    patience: Patience = "12s",
    offered_again: OfferedAgain = "180s",
) -> None:
    """Close retries that are missing for good, with a reason.

    Such as retries lost before their payload was stored, or claimed in a backup that was restored.
    """
    rules = _rules(grace, settle, patience, offered_again)
    with waiting(COMPARING, quiet=as_json):
        found = await operations.write_off(rules, retry_ids=retry_ids or [], reason=reason, execute=yes)
    if as_json:
        print_json({"done": found.done, "written_off": found.written_off} | verdict_report(found.verdict))
        return
    show_missing(found.chosen)
    if found.done:
        line(f"{len(found.written_off):,} written off", "✓", "green")
        if len(found.written_off) < len(found.chosen):
            line(f"{len(found.chosen) - len(found.written_off):,} were no longer missing")
    elif found.chosen:
        note(f"This would write off {len(found.chosen):,}. Nothing was done yet: add --yes.")
    else:
        line("nothing is missing that `tarry audit recover` cannot publish again", "✓", "green")


def _rules(grace: str, settle: str, patience: str, offered_again: str) -> AuditRules:
    return AuditRules(
        duration(grace, "--grace"),
        duration(settle, "--settle"),
        duration(patience, "--patience").total_seconds(),
        duration(offered_again, "--offered-again"),
    )


def _with_session(database_url: str | None, work: Callable[[PostgresSession], Coroutine[Any, Any, T]]) -> T:
    """Run work that needs only Postgres."""

    async def run() -> T:
        async with open_session(load_settings(database_url=database_url).dsn) as session:
            return await work(session)

    return asyncio.run(run())


@contextmanager
def _recover_progress(*, quiet: bool) -> Iterator[Progress]:
    """A spinner during the comparison; then a progress bar for each kind of message, from its first call on."""
    titles = {"retries": "publishing again", "reviews": "to review"}
    with ExitStack() as shown:
        bars: dict[str, Any] = {}
        shown.enter_context(waiting(COMPARING, quiet=quiet))

        def progress(what: Literal["retries", "reviews"], done: int, total: int) -> None:
            if what not in bars:
                shown.close()
                bars[what] = shown.enter_context(progress_bar(titles[what], quiet=quiet))
            if total:
                bars[what].update(bars[what].task_ids[0], completed=done, total=total)

        yield progress

"""`tarry import`: moves waits that began in another system into tarry.

Exit codes: 0 all rows were imported; 1 some rows cannot be imported, or the broker or the database failed: run it
again; 2 wrong usage, or the table does not fit.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import Annotated, Any

import typer

from tarry.amqp.url import Address
from tarry.cli import options as given
from tarry.cli.control_view import plain
from tarry.cli.output import Commands, line, note, print_json, print_table, progress_bar, table, warn
from tarry.cli.streams import exit_code, terminable_task
from tarry.core.decide import Failure
from tarry.errors import SettingsError, TarryError
from tarry.imports.run import BATCH, Importer, ImportProgress
from tarry.imports.source import ImportSource, QueueShare, SourceOptions
from tarry.topology.model import Topology

MOST_NAMED = 20

group = typer.Typer(cls=Commands, no_args_is_help=True, help="Move waits of another system into tarry.")


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="import")


@group.command("postgres")
def import_postgres(
    *,
    source: Annotated[
        str, typer.Option("--table", metavar="TABLE", help="The table or view: retry_queue, or billing.retry_queue.")
    ],
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            envvar="TARRY_IMPORT_DSN",
            help="The database of the table: postgresql://user:password@host/name. Prefer the environment.",
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Which rows wait: \"status = 'pending'\".", show_default="all")
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=COLUMN", help="A column with another name; may be repeated."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The queue of all rows, if no column has it.")
    ] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="The time zone of due times that have none: UTC, Europe/Zagreb.")
    ] = None,
    counted: Annotated[
        bool, typer.Option("--counted", help="The retry count includes the retry that the row waits for.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Rows that are sent and recorded together.")] = BATCH,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be imported, and change nothing.")
    ] = False,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    ca_file: given.CaFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Import the waiting rows of a polling table; each keeps its due time.

    Stop what polls the table first. The table is only read: another one beside it,
    tarry_imported, has the keys of imported rows. A stopped import can be run again.
    """
    if dsn is None:
        raise SettingsError("Set TARRY_IMPORT_DSN, or give --dsn: the database of the table.")
    options = SourceOptions(source, mapped(mapping or ()), where, queue, zone, counted)
    job = ImportJob(given.topology_from(folder), dsn, options, batch, as_json)
    if dry_run:
        asyncio.run(job.show())
        return
    progress = job.run(given.address_from(url, None, ca_file))
    if progress.refused:
        raise typer.Exit(1)


def mapped(texts: list[str] | tuple[()]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, column = text.partition("=")
        if not equals:
            raise SettingsError(f"--map {text}: write FIELD=COLUMN, for example --map due=run_at.")
        found[name.strip()] = column.strip()
    return found


@dataclass(frozen=True, slots=True)
class ImportJob:
    """One import, and how it is shown."""

    topology: Topology
    dsn: str
    options: SourceOptions
    batch: int
    as_json: bool

    async def show(self) -> None:
        """What would be imported."""
        async with ImportSource.open(self.dsn, self.options) as source:
            shares, before = await source.shares(), await source.imported()
        if self.as_json:
            print_json(plain(self._plan(source, shares, before)))
            return
        columns = ", ".join(f"{name} from {column}" for name, column in source.columns.items())
        note(f"{source.name}: {columns}")
        if before:
            note(f"{before:,} rows were imported before, and are not counted here.")
        shown = table(
            "waiting rows",
            "queue",
            "rows",
            "overdue",
            "first due (UTC)",
            "last due (UTC)",
            "policy",
            right=("rows", "overdue"),
            copied=("queue",),
        )
        for one in shares:
            times = (
                f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if time else "-" for time in (one.first_due, one.last_due)
            )
            shown.add_row(one.queue or "-", f"{one.rows:,}", f"{one.overdue:,}", *times, self._policy(one.queue))
        print_table(shown)
        line(f"{sum(one.rows for one in shares):,} rows would be imported; nothing was changed")

    def run(self, address: Address) -> ImportProgress:
        """Reports what was done also if it is stopped or fails: running it again does the rest."""
        progress = ImportProgress(0)
        try:
            with progress_bar("importing", quiet=self.as_json) as shown:

                def report(now: ImportProgress) -> None:
                    shown.update(shown.task_ids[0], completed=now.done, total=now.waiting)

                asyncio.run(self._import(address, progress, report))
        except KeyboardInterrupt as stopped:
            self._report(progress)
            note("Stopped. Run the same command again for the rest.")
            raise typer.Exit(exit_code(stopped)) from None
        except TarryError:
            if progress.done:
                self._report(progress)
                note("Run the same command again for the rest.")
            raise
        self._report(progress)
        return progress

    async def _import(self, address: Address, progress: ImportProgress, report: Any) -> None:
        with terminable_task():
            await self._move(address, progress, report)

    async def _move(self, address: Address, progress: ImportProgress, report: Any) -> None:
        async with ImportSource.open(self.dsn, self.options) as source:
            progress.waiting = sum(one.rows for one in await source.shares())
            report(progress)
            await Importer(source, address, self.topology.broker_names, progress, report, self.batch).run()

    def _report(self, progress: ImportProgress) -> None:
        if self.as_json:
            refused = [{"key": key, "reason": reason} for key, reason in progress.refused]
            print_json({**asdict(progress), "refused": refused})
            return
        line(f"{progress.imported:,} of {progress.waiting:,} rows imported; each returns when it is due", "✓", "green")
        for key, reason in progress.refused[:MOST_NAMED]:
            warn(f"the row {key} was not imported: {reason}")
        if len(progress.refused) > MOST_NAMED:
            warn(f"{len(progress.refused) - MOST_NAMED:,} more were not imported; --json lists all")

    def _plan(self, source: ImportSource, shares: list[QueueShare], before: int) -> dict[str, Any]:
        queues = [{**one._asdict(), "policy": self._policy(one.queue)} for one in shares]
        waiting = sum(one.rows for one in shares)
        return {
            "table": source.name,
            "columns": source.columns,
            "waiting": waiting,
            "imported": before,
            "queues": queues,
        }

    def _policy(self, queue: str | None) -> str:
        """The policy of later failures; a queue without one is not retried."""
        found = self.topology.rules.policy_for(Failure(queue or ""))
        return found.name if found else "none: goes to review"

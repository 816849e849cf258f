"""The table that an import reads: what it refuses, and how it reads columns of other types."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tarry.errors import SettingsError, SourceError
from tarry.imports.row import ImportRow
from tarry.imports.source import ImportSource, SourceOptions
from tests.support.cli import run_cli
from tests.support.spaces import Database

DUE = datetime(2031, 1, 31, 12, 0, 0, 250_001, tzinfo=UTC)
DUE_MS = 1_927_627_200_251
"""Rounded up: the table has microseconds."""


def execute(database: Database, sql: str, *values: object) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute(sql.encode(), values or None)


def make(database: Database, columns: str, *values: object) -> None:
    """A table `jobs` with these columns, and a row."""
    execute(database, f"create table jobs ({columns})")
    if values:
        places = ", ".join(["%s"] * len(values))
        execute(database, f"insert into jobs values ({places})", *values)  # noqa: S608 - our own text


def read(database: Database, **options: Any) -> list[ImportRow]:
    async def all_rows() -> list[ImportRow]:
        async with ImportSource.open(database.dsn, SourceOptions("jobs", **options)) as source:
            return [row async for batch in source.rows(2) for row in batch]

    return asyncio.run(all_rows())


USUAL = "id int, original_payload bytea, original_queue text, next_retry_at timestamptz"


def test_source_reads_a_usual_table(database: Database) -> None:
    make(database, f"{USUAL}, retry_count int", 7, b"\x00", "invoices", DUE, 2)
    assert read(database) == [ImportRow("7", DUE_MS, "invoices", b"\x00", 3, {})]
    assert read(database, counted=True)[0].retry_count == 2


def test_source_reads_other_names_and_types(database: Database) -> None:
    columns = "job uuid, args jsonb, run_at bigint, meta jsonb, kind text, tries smallint"
    job = "0d9c7a52-7d9c-4a9e-8f43-1de0a2d2f001"
    make(database, columns, job, '{"a": 1}', DUE_MS, '{"tenant": "acme"}', "pdf", 1)
    names = {"key": "job", "payload": "args", "due": "run_at", "headers": "meta", "job_type": "kind"}
    (row,) = read(database, mapping={**names, "retry_count": "tries"}, queue="pdfs")
    assert row == (job, DUE_MS, "pdfs", b'{"a": 1}', 2, {"headers": {"tenant": "acme"}, "job_type": "pdf"})


def test_source_reads_times_without_a_zone_in_the_named_one(database: Database) -> None:
    make(database, USUAL.replace("timestamptz", "timestamp"), 1, b"", "q", DUE.replace(tzinfo=None))
    assert read(database, zone="UTC")[0].due_ms == DUE_MS
    assert read(database, zone="Europe/Zagreb")[0].due_ms == DUE_MS - 3_600_000
    for zone in (None, "Mars/Olympus"):
        with pytest.raises(SettingsError, match="--zone"):
            read(database, zone=zone)


def test_source_reads_those_that_are_due_first_first(database: Database) -> None:
    make(database, USUAL)
    for number, seconds in enumerate((3, 1, 2)):
        row = "insert into jobs values (%s, '', 'q', to_timestamp(%s))"
        execute(database, row, number, 1_900_000_000 + seconds)
    assert [row.key for row in read(database)] == ["1", "2", "0"]


def test_source_takes_any_condition(database: Database) -> None:
    make(database, f"{USUAL}, status text", 1, b"", "q", DUE, "100%{}")
    assert len(read(database, where="status like '100%{}'")) == 1
    assert read(database, where="status = 'x' or false") == []


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        (USUAL, {"mapping": {"due": "run_at"}}, "has no column run_at. It has id, original_payload"),
        (USUAL, {"mapping": {"when": "run_at"}}, "when is not a field"),
        (USUAL.replace("original_queue", "target"), {}, "no column original_queue for the queue: .* or give --queue"),
        (USUAL.replace("timestamptz", "text"), {}, "next_retry_at has the type text"),
        (f"{USUAL}, status text", {}, "has a column status .*say which rows wait"),
        (USUAL, {"where": "state = 'x'"}, "look at --where"),
        (USUAL, {"where": "id ="}, "look at --where"),
    ],
)
def test_source_refuses_what_does_not_fit(database: Database, columns: str, options: dict[str, Any], why: str) -> None:
    make(database, columns)
    with pytest.raises(SettingsError, match=why):
        read(database, **options)


def test_source_refuses_keys_that_two_rows_share(database: Database) -> None:
    make(database, USUAL, 1, b"first", "q", DUE)
    execute(database, "insert into jobs select * from jobs")
    with pytest.raises(SettingsError, match="1 rows have no id of their own"):
        read(database)


def test_source_marks_rows_and_does_not_read_them_again(database: Database) -> None:
    make(database, USUAL, 1, b"", "q", DUE)

    async def mark() -> tuple[str, str, int]:
        async with ImportSource.open(database.dsn, SourceOptions("jobs")) as source, source.lock():
            await source.mark(["1"])
            await source.mark(["1"])
            return await source.identity(), await source.identity(), await source.imported()

    first, second, imported = asyncio.run(mark())
    assert (first, imported) == (second, 1)
    assert read(database) == []


def test_source_refuses_a_second_import_at_the_same_time(database: Database) -> None:
    make(database, USUAL)

    async def twice() -> None:
        options = SourceOptions("jobs")
        async with (
            ImportSource.open(database.dsn, options) as one,
            ImportSource.open(database.dsn, options) as other,
            one.lock(),
            other.lock(),
        ):
            pytest.fail("two imports of one table")

    with pytest.raises(SourceError, match=r"Another import of public\.jobs is running"):
        asyncio.run(twice())


def test_source_says_how_to_create_its_tables_if_it_may_not(database: Database) -> None:
    make(database, USUAL)
    name = f"reader_{database.name}"
    for statement in ("create role {} login", "grant select on jobs to {}"):
        execute(database, statement.format(name))
    execute(database, "revoke create on schema public from public")
    dsn = database.dsn.replace("postgres@", f"{name}@")

    async def lock() -> None:
        async with ImportSource.open(dsn, SourceOptions("jobs")) as source, source.lock():
            pytest.fail("it may not create tables")

    try:
        with pytest.raises(SourceError, match=r'create table if not exists "public"\."tarry_imported"'):
            asyncio.run(lock())
    finally:
        execute(database, f"drop owned by {name}")
        execute(database, f"drop role {name}")


def test_import_names_a_missing_table_and_a_wrong_map(database: Database) -> None:
    given = ["import", "postgres", "--dsn", database.dsn, "--dry-run", "--table", "jbos"]
    missing, wrong = run_cli(given), run_cli([*given, "--map", "due"])
    assert (missing.exit_code, "There is no table jbos in the database" in missing.output) == (2, True)
    assert (wrong.exit_code, "write FIELD=COLUMN" in wrong.output) == (2, True)


def test_import_names_a_database_that_does_not_answer() -> None:
    done = run_cli(["import", "postgres", "--dsn", "postgresql://127.0.0.1:1/x", "--dry-run", "--table", "jobs"])
    assert (done.exit_code, "The database of the table" in done.output) == (1, True)

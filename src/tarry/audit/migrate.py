"""Forward migrations: numbered SQL files, each applied once, under a lock so that two starters do not collide."""

from __future__ import annotations

from importlib.resources import files

import psycopg

from tarry.errors import AuditError, AuditUnavailableError

_LOCK = 7_312_001
"""Of the advisory lock; any fixed number of our own will do."""

_LEDGER = """
create table if not exists tarry_migration (
    name       text primary key,
    applied_at timestamptz not null default clock_timestamp()
)
"""


def migrate(dsn: str) -> list[str]:
    """Bring the database up to date; returns the names of what was applied now."""
    try:
        with psycopg.connect(dsn) as connection:
            connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(_LEDGER)
            done = {row[0] for row in connection.execute("select name from tarry_migration")}
            return [_apply(connection, name, text) for name, text in _migrations() if name not in done]
    except psycopg.OperationalError as error:
        raise AuditUnavailableError(f"Postgres does not answer: {error}".strip()) from error
    except psycopg.Error as error:
        raise AuditError(
            f"The database cannot be migrated: {error} The user in DATABASE_URL needs the right to create tables."
        ) from error


def _migrations() -> list[tuple[str, str]]:
    folder = files("tarry.audit") / "sql" / "migrations"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in found]


def _apply(connection: psycopg.Connection, name: str, text: str) -> str:
    connection.execute(text.encode())
    connection.execute("insert into tarry_migration (name) values (%s)", (name,))
    return name

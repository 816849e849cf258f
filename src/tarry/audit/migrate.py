"""Forward migrations: numbered SQL files, each applied once, under a lock so that two starters do not collide."""

from __future__ import annotations

from importlib.resources import files

import psycopg
import structlog

from tarry.audit.pooling import refuse_shared_sessions
from tarry.audit.queries import query
from tarry.audit.trouble import explained
from tarry.errors import AuditError

log = structlog.get_logger()


def migrate(dsn: str) -> list[str]:
    """Bring the database up to date; returns the names of what was applied now."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            refuse_shared_sessions(connection, dsn)
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            connection.execute(query("lock_migrations"))
            applied = [_apply(connection, name, text) for name, text in _migrations() if name not in _done(connection)]
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            _add_partitions(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise AuditError(
            f"The database cannot be migrated: {error} Give the user in DATABASE_URL the right to create tables, "
            "or run `tarry audit migrate` once as a user who has it."
        ) from error
    except psycopg.Error as error:
        raise explained(error) from error
    return applied


def _migrations() -> list[tuple[str, str]]:
    folder = files("tarry.audit") / "sql" / "migrations"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in found]


def _done(connection: psycopg.Connection) -> set[str]:
    """A user who may create nothing can still find that there is nothing to do."""
    there = connection.execute(query("has_migrations")).fetchone()
    return {row[0] for row in connection.execute(query("migrations"))} if there and there[0] else set()


def _apply(connection: psycopg.Connection, name: str, text: str) -> str:
    connection.execute(text.encode())
    connection.execute(query("add_migration"), {"name": name})
    return name


def _add_partitions(connection: psycopg.Connection) -> None:
    """Without the right to add them, the history goes into the default partition: complete, only not dropped by day."""
    try:
        connection.execute(query("add_partitions"))
    except psycopg.errors.InsufficientPrivilege as error:
        log.warning(
            "no partitions for the history", error=str(error), do="run `tarry audit migrate` as its owner daily"
        )

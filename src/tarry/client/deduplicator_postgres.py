"""A deduplicator in Postgres: it covers every consumer that shares the database, and survives restarts.

The mark is written in the handler's own transaction, so it is committed if and only if the handler's work is. This
module imports no driver: it works with the psycopg 3 connection that the handler has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Protocol

from tarry.client.attempt import Attempt

TABLE = """
create table if not exists tarry_handled (
    attempt    text        primary key,
    handled_at timestamptz not null default clock_timestamp()
);
create index if not exists tarry_handled_at on tarry_handled (handled_at);
"""
"""Create it once, in your own migrations: the table belongs in the handler's database, not in the audit's."""

_MARK = "insert into tarry_handled (attempt) values (%(attempt)s) on conflict do nothing"
_FORGET = "delete from tarry_handled where handled_at < clock_timestamp() - %(age)s::interval"


class Connection(Protocol):
    """The part of psycopg.Connection that is used."""

    def transaction(self) -> AbstractContextManager[Any]: ...
    def execute(self, query: Any, params: Mapping[str, Any] | None = None) -> Any: ...


class AsyncConnection(Protocol):
    """The part of psycopg.AsyncConnection that is used."""

    def transaction(self) -> AbstractAsyncContextManager[Any]: ...
    async def execute(self, query: Any, params: Mapping[str, Any] | None = None) -> Any: ...


@contextmanager
def once(connection: Connection, attempt: Attempt) -> Iterator[bool]:
    """Yields True if the work has to be done, in this transaction; False if it was done before.

    If the block raises, the work counts as not done. If another consumer is processing the same attempt, this call
    waits: Postgres blocks the second mark until the first is committed or rolled back.
    """
    with connection.transaction():
        yield attempt.key is None or bool(connection.execute(_MARK, {"attempt": attempt.key}).rowcount)


@asynccontextmanager
async def once_async(connection: AsyncConnection, attempt: Attempt) -> AsyncIterator[bool]:
    """The same as `once`, for psycopg.AsyncConnection."""
    async with connection.transaction():
        key = attempt.key
        yield key is None or bool((await connection.execute(_MARK, {"attempt": key})).rowcount)


def forget(connection: Connection, older_than: timedelta) -> int:
    """Deletes old marks and returns how many.

    Keep marks for longer than your longest retry takes, or for a few days.
    """
    return int(connection.execute(_FORGET, {"age": older_than}).rowcount)

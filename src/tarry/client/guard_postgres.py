"""The guard in Postgres: holds for every consumer that shares the database, and across restarts.

The mark is made in the handler's own transaction, so it stands if and only if the handler's work does. Nothing is
imported for it: it works with whatever connection of psycopg 3 the handler has.
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
"""Run it once, with your own migrations: the database is the handler's, not the audit's."""

_MARK = "insert into tarry_handled (attempt) values (%(attempt)s) on conflict do nothing"
_FORGET = "delete from tarry_handled where handled_at < clock_timestamp() - %(age)s::interval"


class Connection(Protocol):
    """As psycopg.Connection."""

    def transaction(self) -> AbstractContextManager[Any]: ...
    def execute(self, query: Any, params: Mapping[str, Any] | None = None) -> Any: ...


class AsyncConnection(Protocol):
    """As psycopg.AsyncConnection."""

    def transaction(self) -> AbstractAsyncContextManager[Any]: ...
    async def execute(self, query: Any, params: Mapping[str, Any] | None = None) -> Any: ...


@contextmanager
def once(connection: Connection, attempt: Attempt) -> Iterator[bool]:
    """True where the work is to be done, in this transaction; False where it was. If the block raises, it was not.

    Another consumer at work on the same attempt is waited for: Postgres holds the second mark until the first one is
    committed or taken back.
    """
    with connection.transaction():
        yield attempt.key is None or bool(connection.execute(_MARK, {"attempt": attempt.key}).rowcount)


@asynccontextmanager
async def once_async(connection: AsyncConnection, attempt: Attempt) -> AsyncIterator[bool]:
    """The same for psycopg.AsyncConnection."""
    async with connection.transaction():
        key = attempt.key
        yield key is None or bool((await connection.execute(_MARK, {"attempt": key})).rowcount)


def forget(connection: Connection, older_than: timedelta) -> int:
    """Takes old marks away; how many. Keep them for longer than your longest retry takes, or a few days."""
    return int(connection.execute(_FORGET, {"age": older_than}).rowcount)

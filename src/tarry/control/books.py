"""Postgres, as operators' actions use it: named queries on a pool, transactions, and locks that one process has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg_pool import PoolTimeout

from tarry.audit.connecting import Connection, pool
from tarry.audit.pooling import refuse_shared_sessions_async
from tarry.audit.trouble import explained
from tarry.control.queries import query

Row = tuple[Any, ...]


class Page:
    """One connection: what is asked on it is one conversation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        """The answer of one named query."""
        with _explained():
            cursor = await self._connection.execute(query(name), parameters)
            return await cursor.fetchall() if cursor.description else []

    async def one(self, name: str, /, **parameters: object) -> Row | None:
        """The first row of the answer, if there is any."""
        found = await self.rows(name, **parameters)
        return found[0] if found else None

    async def change(self, name: str, /, **parameters: object) -> int:
        """How many rows one named query changed."""
        with _explained():
            return (await self._connection.execute(query(name), parameters)).rowcount


class Books:
    """Opens lazily and heals by itself; while Postgres is away every question raises AuditUnavailableError."""

    def __init__(self, dsn: str, actor: str, *, patience: float = 3.0, connections: int = 8) -> None:
        self._dsn = dsn
        self._pool = pool(dsn, f"tarry desk {actor}", patience=patience, connections=connections, configure=_configure)

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=1)

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        """The answer of one named query, which is a transaction of its own."""
        async with self.page() as page:
            return await page.rows(name, **parameters)

    async def one(self, name: str, /, **parameters: object) -> Row | None:
        """The first row of the answer, if there is any."""
        async with self.page() as page:
            return await page.one(name, **parameters)

    async def change(self, name: str, /, **parameters: object) -> int:
        """How many rows one named query changed."""
        async with self.page() as page:
            return await page.change(name, **parameters)

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """A connection for as long as the block lasts; each question on it is committed at once."""
        with _explained():
            async with self._pool.connection() as connection:
                await refuse_shared_sessions_async(connection, self._dsn)
                yield Page(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Page]:
        """All or nothing of what the block asks."""
        with _explained():
            async with self._pool.connection() as connection:
                await refuse_shared_sessions_async(connection, self._dsn)
                async with connection.transaction():
                    yield Page(connection)

    @asynccontextmanager
    async def lock(self, number: int) -> AsyncIterator[Page | None]:
        """The page that has this advisory lock while the block lasts; None if another process has it."""
        async with self.page() as page:
            got = await page.one("try_lock", number=number)
            if not (got and got[0]):
                yield None
                return
            try:
                yield page
            finally:
                await page.rows("unlock", number=number)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, PoolTimeout) as error:
        raise explained(error) from error


async def _configure(connection: Connection) -> None:
    await connection.execute(query("configure_desk"))

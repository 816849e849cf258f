"""A connection pooler between tarry and Postgres.

tarry keeps advisory locks, settings and prepared statements in its sessions. A pooler that gives a client one server
connection for as long as it is connected (pgbouncer: pool_mode = session) is fine. One that gives it another for each
transaction is refused: there a lock stays behind with a connection that somebody else is given next.
"""

from __future__ import annotations

import asyncio

import psycopg

from tarry.audit.connecting import Connection
from tarry.audit.trouble import PoolerError, Trouble, unavailable

PATIENCE = 5.0
"""Seconds for two connections and all looks at them."""

LOOKS = 40
"""A pooler that nobody else uses gives itself away at the first look, or once all its connections had their turn."""

PID = "select pg_backend_pid()"

_sound: set[str] = set()
"""Addresses that were looked at before: a process looks once."""


def refuse_shared_sessions(connection: psycopg.Connection, dsn: str) -> None:
    """Raises a PoolerError if this connection's session is not its own."""
    if dsn not in _sound and _is_pooled(connection, connection.execute(PID).fetchone()):
        asyncio.run(_look(dsn))
    _sound.add(dsn)


async def refuse_shared_sessions_async(connection: Connection, dsn: str) -> None:
    """The same for an asynchronous connection."""
    if dsn not in _sound and _is_pooled(connection, await (await connection.execute(PID)).fetchone()):
        await _look(dsn)
    _sound.add(dsn)


def _is_pooled(connection: psycopg.Connection | Connection, answer: tuple[int, ...] | None) -> bool:
    """Postgres tells its process when a client connects. A pooler tells a number of its own: it does not know yet which
    process it will be.
    """
    return answer is not None and answer[0] != connection.info.backend_pid


async def _look(dsn: str) -> None:
    try:
        shared = await asyncio.wait_for(_are_shared(dsn), PATIENCE)
    except TimeoutError:
        raise unavailable(Trouble.POOLER, f"it did not give two connections within {PATIENCE:g} seconds.") from None
    if shared:
        raise PoolerError


async def _are_shared(dsn: str) -> bool:
    """Two sessions of which each is one client's have one process each, and never the same."""
    async with await _connect(dsn) as one, await _connect(dsn) as other:
        ones: set[int] = set()
        others: set[int] = set()
        for _ in range(LOOKS):
            ones.add(await _process(one))
            others.add(await _process(other))
            if len(ones) > 1 or len(others) > 1 or ones & others:
                return True
    return False


async def _connect(dsn: str) -> Connection:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=5, prepare_threshold=None)


async def _process(connection: Connection) -> int:
    answer = await (await connection.execute(PID)).fetchone()
    return int(answer[0]) if answer else 0

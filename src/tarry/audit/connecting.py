"""How tarry connects to Postgres: named, and never for hours on a connection whose other end is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import psycopg
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

Connection = psycopg.AsyncConnection[TupleRow]

LONGEST_NAME = 63
"""Bytes that Postgres keeps of an application's name."""

_NOTICE = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""A silent network is noticed within half a minute; the system's own defaults take hours."""


def pool(
    dsn: str, name: str, *, patience: float, connections: int, configure: Callable[[Connection], Awaitable[None]]
) -> AsyncConnectionPool[Connection]:
    """Connections that heal by themselves, and on which each statement is a transaction of its own. Not open yet."""
    return AsyncConnectionPool[Connection](
        dsn,
        min_size=1,
        max_size=connections,
        timeout=patience,
        open=False,
        configure=configure,
        kwargs={"autocommit": True, "application_name": name[:LONGEST_NAME], **_NOTICE},
    )

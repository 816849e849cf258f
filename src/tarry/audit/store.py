"""The audit in Postgres, as the router and the tap use it: each call is one statement for a whole batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tarry.audit.queries import query
from tarry.audit.records import Claim, Granted, Record, Return
from tarry.core.states import Note
from tarry.errors import AuditError, AuditUnavailableError

T = TypeVar("T")
Connection = psycopg.AsyncConnection[TupleRow]

LEASE = timedelta(seconds=60)
"""After this long a claim that was never confirmed may be taken over."""

_ATTEMPTS = 3
"""Two routers that claim the same ids may deadlock; Postgres ends one of them, which simply asks again."""


class Store:
    """Opens lazily and heals by itself: the pool reconnects, callers see AuditUnavailableError meanwhile."""

    def __init__(self, dsn: str, actor: str, *, patience: float = 2.0, connections: int = 4) -> None:
        self._actor = actor
        self._pool = AsyncConnectionPool[Connection](
            dsn,
            min_size=1,
            max_size=connections,
            timeout=patience,
            open=False,
            check=AsyncConnectionPool.check_connection,
            kwargs={"autocommit": True, "application_name": f"tarry {actor}", "connect_timeout": 5},
        )

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close()

    async def claim(self, claims: Sequence[Claim]) -> dict[str, Granted]:
        """Those of the claims that are ours now, by retry id; the others are duplicates."""
        rows = await self._run(lambda connection: _claim(connection, claims, self._actor))
        return {str(row[0]): Granted(row[1], row[2], row[3]) for row in rows}

    async def record(self, records: Sequence[Record]) -> None:
        await self._execute("record", _columns(records, _RECORD) | {"actor": self._actor})

    async def note(self, notes: Sequence[tuple[str, int]], note: Note, reason: str) -> None:
        ids, rounds = [one for one, _ in notes], [round_ for _, round_ in notes]
        same = [note.value] * len(notes)
        await self._execute(
            "note", {"ids": ids, "rounds": rounds, "notes": same, "actor": self._actor, "reason": reason}
        )

    async def returned(self, returns: Sequence[Return]) -> None:
        await self._execute("returned", _columns(returns, _RETURN) | {"actor": self._actor})

    async def ping(self) -> None:
        """Raises if Postgres does not answer."""
        await self._run(lambda connection: connection.execute("select 1"))

    async def _execute(self, name: str, parameters: Mapping[str, Any]) -> None:
        await self._run(lambda connection: connection.execute(query(name), parameters))

    async def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self._pool.connection() as connection:
                    return await work(connection)
            except psycopg.errors.DeadlockDetected:
                if attempt == _ATTEMPTS:
                    raise
            except (psycopg.OperationalError, PoolTimeout) as error:
                raise AuditUnavailableError(f"Postgres does not answer: {error}".strip()) from error
            except psycopg.Error as error:
                raise AuditError(f"Postgres refused: {error}".strip()) from error
        raise AssertionError


async def _claim(connection: Connection, claims: Sequence[Claim], actor: str) -> list[TupleRow]:
    cursor = await connection.execute(query("claim"), _columns(claims, _CLAIM) | {"actor": actor, "lease": LEASE})
    return await cursor.fetchall()


def _columns(items: Sequence[object], names: Mapping[str, str]) -> dict[str, Any]:
    """Rows to arrays: one per parameter of the query."""
    return {parameter: [getattr(item, attribute) for item in items] for parameter, attribute in names.items()}


_CLAIM = {
    "ids": "retry_id",
    "rounds": "round",
    "knows_round": "knows_round",
    "redelivered": "redelivered",
    "counts": "retry_count",
    "queues": "queue",
    "message_ids": "message_id",
    "since_ms": "since_ms",
}
_RECORD = {
    "ids": "retry_id",
    "rounds": "round",
    "states": "state",
    "reasons": "reason",
    "queues": "queue",
    "exchanges": "exchange",
    "routing_keys": "routing_key",
    "message_ids": "message_id",
    "counts": "retry_count",
    "most": "max_retries",
    "policies": "policy",
    "classes": "error_class",
    "types": "error_type",
    "error_reasons": "error_reason",
    "since_ms": "since_ms",
    "due_ms": "due_ms",
    "delay_ms": "delay_ms",
    "tiers": "tier",
    "bodies": "body",
    "properties": "properties",
}
_RETURN = {
    "ids": "retry_id",
    "rounds": "round",
    "queues": "queue",
    "counts": "retry_count",
    "due_ms": "due_ms",
    "at_ms": "at_ms",
    "redelivered": "redelivered",
}

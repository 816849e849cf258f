"""The audit in Postgres, as the router and the tap use it: each call is one statement for a whole batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow
from psycopg_pool import PoolTimeout

from tarry.audit.columns import CANCELLED, CLAIM, RECORD, RETURN, column, columns
from tarry.audit.connecting import Connection, pool
from tarry.audit.outcomes import outcome_columns
from tarry.audit.queries import query
from tarry.audit.records import Claim, Granted, Record, Return
from tarry.audit.trouble import Trouble, explained, unavailable
from tarry.contract.outcome import Outcome
from tarry.core.fingerprint import fingerprint
from tarry.core.states import Note

T = TypeVar("T")

LEASE = timedelta(seconds=60)
"""A claim that was not confirmed for so long has lost its request: it would have been delivered again by now."""

MOMENT = timedelta(seconds=3)
"""For so long another router is believed to be at work on its claim, though the request is delivered again: it may be a
second request for the same. To call it a duplicate could lose it, to take over could double it; so it waits."""

DOUBT = timedelta(seconds=10)
"""The same for a request that is delivered for the first time."""

ANY_ROUND = 0

LARGEST_PAYLOAD = 1 << 20
"""Bytes of a body that is kept unless the settings say otherwise; a larger one cannot be rebuilt."""

_PATIENCE = 5.0
"""Seconds for one statement, which takes some tens of milliseconds; past it Postgres counts as away. Longer than the
statement_timeout of our connections, so that a server which is slow but there can say so itself."""

_ASK_AGAIN = 0.1

_ATTEMPTS = 3
"""Two routers that claim the same ids may deadlock; Postgres ends one of them, which simply asks again."""


class Store:
    """Opens lazily and heals by itself: the pool reconnects, callers see AuditUnavailableError meanwhile."""

    def __init__(
        self,
        dsn: str,
        actor: str,
        *,
        patience: float = 2.0,
        connections: int = 6,
        largest_payload: int = LARGEST_PAYLOAD,
    ) -> None:
        self._actor = actor
        self._largest = largest_payload
        self._pool = pool(dsn, f"tarry {actor}", patience=patience, connections=connections, configure=_configure)

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=1)

    async def claim(self, claims: Sequence[Claim]) -> dict[str, Granted]:
        """Those of the claims that are ours now, by retry id; the others are duplicates."""
        granted: dict[str, Granted] = {}
        asked = claims
        rules = {"actor": self._actor, "lease": LEASE, "moment": MOMENT, "doubt": DOUBT}
        while asked:
            rows = await self._rows("claim", columns(asked, CLAIM) | rules)
            granted |= {row[0]: Granted(row[1], row[2], row[3]) for row in rows if not row[4]}
            undecided = {row[0] for row in rows if row[4]}
            asked = [claim for claim in asked if claim.retry_id in undecided]
            if asked:
                await asyncio.sleep(_ASK_AGAIN)
        return granted

    async def release(self, claimed: Sequence[tuple[str, int]]) -> None:
        """Gives claims of ours back: ids and rounds, or ANY_ROUND."""
        ids, rounds = [one for one, _ in claimed], [round_ for _, round_ in claimed]
        await self._rows("give_back", {"ids": ids, "rounds": rounds, "actor": self._actor})

    async def record(self, records: Sequence[Record]) -> None:
        rows = columns(records, RECORD)
        rows["bodies"] = column("bodies", (self._payload(one) for one in records))
        rows["fingerprints"] = column(
            "fingerprints", (fingerprint(one.error_type, one.error_reason) for one in records)
        )
        await self._rows("record", rows | {"actor": self._actor})

    def _payload(self, record: Record) -> bytes | None:
        return None if record.body is None or len(record.body) > self._largest else record.body

    async def note(self, notes: Sequence[tuple[str, int]], note: Note, reason: str) -> None:
        ids, rounds = [one for one, _ in notes], [round_ for _, round_ in notes]
        same = [note.value] * len(notes)
        await self._rows("note", {"ids": ids, "rounds": rounds, "notes": same, "actor": self._actor, "reason": reason})

    async def returned(self, returns: Sequence[Return]) -> None:
        await self._rows("returned", columns(returns, RETURN) | {"actor": self._actor})

    async def succeeded(self, outcomes: Sequence[Outcome]) -> None:
        """Consumers report that they dealt with these rounds."""
        await self._rows("succeeded", outcome_columns(outcomes))

    async def cancelled(self, sightings: Sequence[Return]) -> None:
        """These rounds were diverted at the cancelled gate."""
        await self._rows("cancelled", columns(sightings, CANCELLED) | {"actor": self._actor})

    async def strayed(self, found: Sequence[tuple[str, int]]) -> None:
        """These rounds came to the unroutable queue."""
        ids, rounds = [one for one, _ in found], [round_ for _, round_ in found]
        await self._rows("strayed", {"ids": ids, "rounds": rounds, "actor": self._actor})

    async def ping(self) -> None:
        """Raises if Postgres cannot be written to: one that answers but is full or read-only is of no use."""
        await self._rows("ping", {})

    async def _rows(self, name: str, parameters: Mapping[str, Any]) -> list[TupleRow]:
        async def ask(connection: Connection) -> list[TupleRow]:
            cursor = await connection.execute(query(name), parameters)
            return await cursor.fetchall() if cursor.description else []

        return await self._run(ask)

    async def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Gives up after `_PATIENCE`, whatever Postgres or the network between is doing."""
        running = asyncio.ensure_future(self._insist(work))
        try:
            done, _ = await asyncio.wait([running], timeout=_PATIENCE)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if done:
            return running.result()
        # Not awaited: psycopg asks the server to cancel the statement, which takes as long again if nobody answers.
        running.cancel()
        raise unavailable(Trouble.UNREACHABLE, f"no word from it for {_PATIENCE:g} seconds.")

    async def _insist(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self._pool.connection() as connection:
                    return await work(connection)
            except psycopg.errors.DeadlockDetected as error:
                if attempt == _ATTEMPTS:
                    raise explained(error) from error
            except (psycopg.Error, PoolTimeout) as error:
                raise explained(error) from error
        raise AssertionError


async def _configure(connection: Connection) -> None:
    await connection.execute(query("configure"))

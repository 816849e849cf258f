"""The audit in Postgres, as the router and the tap use it: each call is one statement for a whole batch."""

from __future__ import annotations

import asyncio
import time
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
from tarry.audit.records import Claim, Claimed, Granted, Record, Return
from tarry.audit.trouble import Trouble, explained, unavailable
from tarry.contract.outcome import Outcome
from tarry.core.fingerprint import fingerprint
from tarry.core.states import Note
from tarry.errors import AuditUnavailableError

T = TypeVar("T")

LEASE = timedelta(seconds=60)
"""A claim that was not confirmed for so long has lost its request: it would have been delivered again by now."""

MOMENT = timedelta(seconds=3)
"""For so long another router is believed to be at work on its claim, though the request is delivered again: it may be a
second request for the same. To call it a duplicate could lose it, to take over could double it; so it waits."""

DOUBT = timedelta(seconds=10)
"""The same for a request that is delivered for the first time."""

SKEW = timedelta(seconds=1)
"""So far the clocks of routers and Postgres may differ. What comes due within it counts as due: in doubt a request is a
new round and not a duplicate."""

GIVE_BACK: dict[str, Any] = dict.fromkeys(("of", "tokens", "ids", "rounds", "older_than")) | {"forget": False}
"""Parameters of `give_back`, all of them "any"."""

LARGEST_PAYLOAD = 1 << 20
"""Bytes of a body that is kept unless the settings say otherwise; a larger one cannot be rebuilt."""

_PATIENCE = 5.0
"""Seconds for one statement, which takes some tens of milliseconds; past it Postgres counts as away. Longer than the
statement_timeout of our connections, so that a server which is slow but there can say so itself."""

STATEMENT_TIMEOUT_MS = 4_000
"""Postgres ends a statement of ours that takes longer; as in `configure`."""

_MARGIN_MS = 500

_ASK_AGAIN = 0.1

_LONGEST_WAIT_MS = 12_000
"""Longer than `DOUBT`: what is still undecided then is being claimed again and again by its router."""

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
        self._rules = {"actor": actor, "lease": LEASE, "moment": MOMENT, "doubt": DOUBT, "skew": SKEW}
        self._ours = GIVE_BACK | {"of": actor, "actor": actor, "forget": True}
        self._token = time.time_ns()
        """Of the latest claim; another router, or this one started again, has others."""
        self._unconfirmed: dict[int, int] = {}
        """Claims that Postgres may have written although it did not say so: the token and the deadline of each."""
        self._server_ahead_ms: int | None = None
        self._largest = largest_payload
        self._pool = pool(dsn, f"tarry {actor}", patience=patience, connections=connections, configure=_configure)

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=1)

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        """What each of the claims is, if it can be told: one that another router goes on moving is in no answer."""
        token = self._token = self._token + 1
        answer = Claimed({}, {})
        asked = {claim.retry_id: (claim.retry_id, claim) for claim in claims}
        ends = _local_ms() + _LONGEST_WAIT_MS
        while asked and _local_ms() < ends:
            rows = await self._claim([claim for _, claim in asked.values()], token)
            answered = {row[0] for row in rows}
            undecided = {named: one for named, one in asked.items() if named not in answered}
            for named, retry, round_, count, since_ms, verdict in rows:
                first, claim = asked[named]
                if verdict == "granted":
                    answer.granted[first] = Granted(retry, round_, count, since_ms)
                elif verdict == "duplicate":
                    answer.duplicate_of[first] = retry
                else:
                    again = claim.set_apart() if verdict == "apart" else claim
                    undecided[again.retry_id] = (first, again)
            asked = undecided
            if asked:
                await asyncio.sleep(_ASK_AGAIN)
        return answer

    async def _claim(self, claims: Sequence[Claim], token: int) -> list[TupleRow]:
        """One statement, with a deadline past which it grants nothing. Without an answer it stays unconfirmed."""
        while True:
            if self._server_ahead_ms is None:
                await self.ping()
            deadline = self._server_now_ms() + int(_PATIENCE * 1_000)
            try:
                rows = await self._rows(
                    "claim", columns(claims, CLAIM) | self._rules | {"token": token, "deadline_ms": deadline}
                )
            except (AuditUnavailableError, asyncio.CancelledError):
                self._unconfirmed[token] = deadline
                raise
            self._learn_clock(next(row[4] for row in rows if row[0] is None))
            if not any(row[5] == "late" for row in rows):
                return [row for row in rows if row[0] is not None]

    async def release(self, claimed: Sequence[tuple[str, int]]) -> None:
        """Gives claims of ours back: ids and rounds."""
        ids, rounds = [one for one, _ in claimed], [round_ for _, round_ in claimed]
        await self._rows("give_back", self._ours | {"ids": ids, "rounds": rounds})

    @property
    def has_unconfirmed(self) -> bool:
        """Whether Postgres may have granted something that we did not hear of."""
        return bool(self._unconfirmed)

    async def release_unconfirmed(self) -> None:
        """Gives back what was granted and not heard of, once no such statement can grant anything any more."""
        await self.ping()
        settled = [
            token
            for token, deadline in self._unconfirmed.items()
            if deadline + STATEMENT_TIMEOUT_MS + _MARGIN_MS < self._server_now_ms()
        ]
        if settled:
            await self._rows("give_back", self._ours | {"tokens": settled})
            for token in settled:
                del self._unconfirmed[token]

    def _server_now_ms(self) -> int:
        """Postgres's clock, or a little less: the answer that told it took its time to get here."""
        return _local_ms() + (self._server_ahead_ms or 0)

    def _learn_clock(self, server_ms: int) -> None:
        self._server_ahead_ms = server_ms - _local_ms()

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
        self._learn_clock((await self._rows("ping", {}))[0][0])

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
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
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


def _local_ms() -> int:
    """A clock that is never set."""
    return time.monotonic_ns() // 1_000_000


async def _configure(connection: Connection) -> None:
    await connection.execute(query("configure"))

"""The audit as the router sees it: Postgres while it answers, else the spool. Retries never wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import structlog

from tarry.audit.records import Claim, Granted, Record
from tarry.audit.spool import spool_message
from tarry.audit.store import Store
from tarry.broker.publisher import Outcome
from tarry.core.names import Names
from tarry.core.states import Note
from tarry.errors import AuditError
from tarry.router.flow import Publish

log = structlog.get_logger()

REMEMBERED = 200_000
"""Claims kept in memory, for duplicates while Postgres is away."""

CHECK_EVERY = 1.0
"""Seconds between looks at a Postgres that was away."""


class ResilientLedger:
    """Claims and records in Postgres; from the first failure until it answers again, from memory and to the spool."""

    def __init__(self, store: Store, publish: Publish, names: Names) -> None:
        self._store = store
        self._publish = publish
        self._names = names
        self._memory: OrderedDict[str, int] = OrderedDict()
        self._watch: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Why Postgres is not being used now, or None."""
        self.spooled = 0

    async def claim(self, claims: Sequence[Claim]) -> dict[str, Granted]:
        if self.trouble is None:
            try:
                granted = await self._store.claim(claims)
            except AuditError as error:
                self._lost(error)
            else:
                self._remember({retry_id: one.round for retry_id, one in granted.items()})
                return granted
        return self._claim_from_memory(claims)

    async def record(self, records: Sequence[Record]) -> None:
        if self.trouble is None:
            try:
                await self._store.record(records)
            except AuditError as error:
                self._lost(error)
            else:
                return
        await self._spool(records)

    async def duplicates(self, found: Sequence[tuple[str, int]]) -> None:
        """A note worth having, not worth waiting for."""
        if self.trouble is None:
            try:
                await self._store.note(found, Note.DUPLICATE, "the same request again")
            except AuditError as error:
                self._lost(error)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    def _claim_from_memory(self, claims: Sequence[Claim]) -> dict[str, Granted]:
        """What this process has claimed is all that is known; a request beyond it is taken on trust."""
        granted = {}
        for one in claims:
            known = self._memory.get(one.retry_id, 0)
            if one.redelivered or not one.knows_round or known < one.round:
                round_ = one.round if one.knows_round else known + 1
                granted[one.retry_id] = Granted(round_, one.retry_count, one.since_ms)
        self._remember({retry_id: one.round for retry_id, one in granted.items()})
        return granted

    def _remember(self, rounds: dict[str, int]) -> None:
        self._memory.update(rounds)
        while len(self._memory) > REMEMBERED:
            self._memory.popitem(last=False)

    async def _spool(self, records: Sequence[Record]) -> None:
        """Through the broker, which is there, to the tap, which writes it when Postgres is back."""
        left = [spool_message(record, self._names) for record in records]
        while left:
            outcomes = await self._publish(left)
            left = [one for one, outcome in zip(left, outcomes, strict=True) if outcome is not Outcome.CONFIRMED]
            if left:
                await asyncio.sleep(CHECK_EVERY)
        self.spooled += len(records)

    def _lost(self, error: AuditError) -> None:
        if self.trouble is None:
            self.trouble = str(error)
            log.warning("postgres is away, retries go on", error=str(error))
            self._watch = asyncio.create_task(self._until_back())

    async def _until_back(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            try:
                await self._store.ping()
            except AuditError as error:
                self.trouble = str(error)
                continue
            self.trouble = None
            log.info("postgres is back", spooled=self.spooled)
            return

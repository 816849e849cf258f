"""The audit as the router sees it: Postgres while it answers, else the spool. Retries never wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog

from tarry.audit.records import Claim, Claimed, Record
from tarry.audit.spool import spool_message
from tarry.audit.store import Store
from tarry.audit.trouble import kind_of
from tarry.broker.publisher import Outcome
from tarry.core.names import Names
from tarry.core.states import Note
from tarry.errors import AuditError, AuditUnavailableError
from tarry.router.flow import Publish
from tarry.router.memory import Memory

log = structlog.get_logger()
T = TypeVar("T")

CHECK_EVERY = 1.0
"""Seconds between looks at a Postgres that was away."""


class ResilientLedger:
    """Claims and records in Postgres; from the first failure until it answers again, from memory and to the spool."""

    def __init__(self, store: Store, publish: Publish, names: Names, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._publish = publish
        self._names = names
        self._memory = Memory(now_ms)
        self._watch: asyncio.Task[None] | None = None
        self._to_release: set[tuple[str, int]] = set()
        """Claims to give back as soon as Postgres takes it."""
        self.trouble: AuditError | None = AuditUnavailableError("Postgres has not answered yet.")
        """Why Postgres is not being used now, or None; the service says when it can be used for the first time."""
        self.spooled = 0
        self.refused = 0

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        if self.trouble is not None:
            return self._memory.claim(claims)
        try:
            answer = await self._store.claim(claims)
        except AuditUnavailableError as error:
            self._lost(error)
            return self._memory.claim(claims)
        except AuditError as error:
            return await self._claim_apart(claims, error)
        self._memory.remember(claims, answer)
        return answer

    async def release(self, claimed: Sequence[tuple[str, int]]) -> None:
        """Claims that nothing follows from. Their requests are delivered again if nobody else has done them."""
        self._to_release.update(claimed)
        if self.trouble is None:
            try:
                await self._release_all()
            except AuditError as error:
                self._lost(error)

    async def record(self, records: Sequence[Record]) -> None:
        self._memory.scheduled(records)
        if self.trouble is None:
            try:
                await self._store.record(records)
            except AuditUnavailableError as error:
                self._lost(error)
            except AuditError as error:
                await self._record_apart(records, error)
                return
            else:
                return
        await self._spool(records)

    async def duplicates(self, found: Sequence[tuple[str, int]]) -> None:
        await self._mention(lambda: self._store.note(found, Note.DUPLICATE, "the same request again"))

    async def strayed(self, found: Sequence[tuple[str, int]]) -> None:
        if found:
            await self._mention(lambda: self._store.strayed(found))

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    async def _mention(self, write: Callable[[], Awaitable[None]]) -> None:
        """Worth having in the history, not worth waiting for."""
        if self.trouble is None:
            try:
                await write()
            except AuditUnavailableError as error:
                self._lost(error)
            except AuditError as error:
                log.warning("postgres refused a note", error=str(error))

    async def _claim_apart(self, claims: Sequence[Claim], error: AuditError) -> Claimed:
        """Something in it is not for Postgres: that one is granted from memory, the others as ever."""
        if len(claims) == 1:
            self._refuse(claims[0].retry_id, error)
            return self._memory.claim(claims)
        one, other = _halves(claims)
        first, second = await self.claim(one), await self.claim(other)
        return Claimed(first.granted | second.granted, first.duplicate_of | second.duplicate_of)

    async def _record_apart(self, records: Sequence[Record], error: AuditError) -> None:
        """As above; what cannot be written whole is written bare."""
        if len(records) > 1:
            one, other = _halves(records)
            await self.record(one)
            await self.record(other)
            return
        whole = records[0]
        self._refuse(whole.retry_id, error)
        bare = whole._replace(
            body=None, properties=None, message_id=None, error_type=None, error_reason=None, exchange=""
        )
        if bare != whole:
            await self.record([bare._replace(routing_key="", reason="stored in part")])

    def _refuse(self, retry_id: str, error: AuditError) -> None:
        self.refused += 1
        log.error("postgres refused an entry", retry_id=retry_id, error=str(error))

    async def _spool(self, records: Sequence[Record]) -> None:
        """Through the broker, which is there, to the tap, which writes it when Postgres is back."""
        guessed = [record._replace(guessed_round=self._memory.guessed_round(record.retry_id)) for record in records]
        left = [spool_message(record, self._names) for record in guessed]
        while left:
            outcomes = await self._publish(left)
            left = [one for one, outcome in zip(left, outcomes, strict=True) if outcome is not Outcome.CONFIRMED]
            if left:
                await asyncio.sleep(CHECK_EVERY)
        self.spooled += len(records)

    def _lost(self, error: AuditError) -> None:
        if self.trouble is None:
            self.trouble = error
            log.warning("postgres is away, retries go on", kind=kind_of(error), error=str(error))
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._until_settled())

    async def _release_all(self) -> None:
        """Whatever Postgres holds for us and nobody will do."""
        if self._store.has_unconfirmed:
            await self._store.release_unconfirmed()
        if released := sorted(self._to_release):
            await self._store.release(released)
            self._to_release.difference_update(released)

    async def _until_settled(self) -> None:
        """Until Postgres is back, and every claim is given back that it may have granted meanwhile."""
        while self.trouble is not None or self._to_release or self._store.has_unconfirmed:
            await asyncio.sleep(CHECK_EVERY)
            try:
                await self._store.ping()
                await self._release_all()
            except AuditError as error:
                self.trouble = error
            else:
                if self.trouble is not None:
                    log.info("postgres is back", spooled=self.spooled)
                self.trouble = None


def _halves(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    middle = len(items) // 2
    return items[:middle], items[middle:]

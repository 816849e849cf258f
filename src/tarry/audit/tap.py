"""The tap: reads the copy of every message that returns, and closes its round in the books.

It also writes what was spooled while Postgres was away. It never gives up a message: with Postgres gone it waits, and
the copies wait in `retry.audit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from tarry.audit.records import Record, Return
from tarry.audit.spool import spooled_record
from tarry.audit.store import Store
from tarry.contract import headers as h
from tarry.contract.fields import BadTableError, walk
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.contract.request import Delivery
from tarry.core.names import Names
from tarry.errors import AuditError, AuditUnavailableError

log = structlog.get_logger()
T = TypeVar("T")

PATIENCE = 1.0
"""Seconds between tries while Postgres is away."""


@dataclass(slots=True)
class Tap:
    """One batch after the other into the store."""

    store: Store
    names: Names
    on_returns: Callable[[Sequence[Return]], None] = field(default=lambda _: None)
    trouble: str | None = None
    """Why nothing can be written now, or None."""

    async def handle(
        self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]
    ) -> list[tuple[Delivery, str]]:
        """Returns once the whole batch is in the books; only then may it be acknowledged.

        What cannot be written at all comes back with the reason: somebody has to look at it, and nobody waits for it.
        """
        spooled, unreadable = self._spooled([one for one in deliveries if one.exchange == self.names.spool])
        # One retry may be in a batch with two rounds, which one statement cannot write: oldest first.
        for round_ in sorted({record.round for _, record in spooled}):
            same = [(one, record) for one, record in spooled if record.round == round_]
            unreadable += await self._write(self.store.record, same)
        seen = [(one, found) for one in deliveries if (found := self._read(one, arrived_ms)) is not None]
        unreadable += await self._write(self.store.returned, seen)
        self.on_returns([found for _, found in seen])
        return unreadable

    def _spooled(
        self, deliveries: Sequence[Delivery]
    ) -> tuple[list[tuple[Delivery, Record]], list[tuple[Delivery, str]]]:
        records: list[tuple[Delivery, Record]] = []
        unreadable: list[tuple[Delivery, str]] = []
        for one in deliveries:
            try:
                records.append((one, spooled_record(one.body)))
            except (ValueError, TypeError, KeyError) as error:
                unreadable.append((one, f"not a spooled record: {error!r}"))
        return records, unreadable

    async def _write(
        self, write: Callable[[Sequence[T]], Awaitable[None]], rows: Sequence[tuple[Delivery, T]]
    ) -> list[tuple[Delivery, str]]:
        """Waits while Postgres is away; what it refuses is found by halving, and returned."""
        if not rows:
            return []
        try:
            await self._insist(write, [row for _, row in rows])
        except AuditError as error:
            if len(rows) == 1:
                return [(rows[0][0], str(error))]
            middle = len(rows) // 2
            return await self._write(write, rows[:middle]) + await self._write(write, rows[middle:])
        return []

    async def _insist(self, write: Callable[[Sequence[T]], Awaitable[None]], rows: Sequence[T]) -> None:
        while True:
            try:
                await write(rows)
            except AuditUnavailableError as error:
                self.trouble = str(error)
                await asyncio.sleep(PATIENCE)
            else:
                self.trouble = None
                return

    def _read(self, delivery: Delivery, arrived_ms: Callable[[int], int]) -> Return | None:
        """A copy without our headers was put there by somebody else; it is no return, and is passed over."""
        if delivery.exchange == self.names.spool:
            return None
        try:
            headers = HeaderReader(dict(walk(delivery.properties.headers or b"")))
            retry_id, round_, due = headers.text(h.ID), headers.count(h.ROUND), headers.count(h.DUE)
            count, queue = headers.count(h.COUNT), headers.text(h.QUEUE)
            tier = headers.text("x-first-death-queue") or ""
        except (RefusalError, BadTableError) as error:
            log.warning("not a return", error=str(error))
            return None
        if retry_id is None or round_ is None or due is None:
            log.warning("not a return", error="it has none of tarry's headers")
            return None
        at_ms = arrived_ms(delivery.tag)
        tier = tier if tier.startswith(f"{self.names.delay}.") else f"{self.names.prefix}ladder"
        return Return(retry_id, round_, queue or "", count or 0, due, at_ms, delivery.redelivered, tier)

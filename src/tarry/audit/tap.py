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

from tarry.audit.records import Return
from tarry.audit.spool import spooled_record
from tarry.audit.store import Store
from tarry.contract import headers as h
from tarry.contract.fields import BadTableError, walk
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.contract.request import Delivery
from tarry.core.names import Names
from tarry.errors import AuditError

log = structlog.get_logger()
T = TypeVar("T")

PATIENCE = 1.0
"""Seconds between tries while Postgres is away."""


@dataclass(slots=True)
class Tap:
    """One batch after the other into the store."""

    store: Store
    names: Names
    now_ms: Callable[[], int]
    on_return: Callable[[Return], None] = field(default=lambda _: None)
    trouble: str | None = None
    """Why nothing can be written now, or None."""

    async def handle(self, deliveries: Sequence[Delivery]) -> None:
        """Returns once the whole batch is in the books; only then may it be acknowledged."""
        now = self.now_ms()
        spooled = [spooled_record(one.body) for one in deliveries if one.exchange == self.names.spool]
        seen = [found for one in deliveries if (found := self._read(one, now)) is not None]
        if spooled:
            # One retry may be in a batch with two rounds, which one statement cannot write: oldest first.
            for round_ in sorted({record.round for record in spooled}):
                await self._insist(self.store.record, [one for one in spooled if one.round == round_])
        if seen:
            await self._insist(self.store.returned, seen)
            for found in seen:
                self.on_return(found)

    async def _insist(self, write: Callable[[Sequence[T]], Awaitable[None]], rows: Sequence[T]) -> None:
        while True:
            try:
                await write(rows)
            except AuditError as error:
                self.trouble = str(error)
                await asyncio.sleep(PATIENCE)
            else:
                self.trouble = None
                return

    def _read(self, delivery: Delivery, now_ms: int) -> Return | None:
        """A copy without our headers was put there by somebody else; it is no return, and is passed over."""
        if delivery.exchange == self.names.spool:
            return None
        try:
            headers = HeaderReader(dict(walk(delivery.properties.headers or b"")))
            retry_id, round_, due = headers.text(h.ID), headers.count(h.ROUND), headers.count(h.DUE)
            count, queue = headers.count(h.COUNT), headers.text(h.QUEUE)
        except (RefusalError, BadTableError) as error:
            log.warning("not a return", error=str(error))
            return None
        if retry_id is None or round_ is None or due is None:
            log.warning("not a return", error="it has none of tarry's headers")
            return None
        return Return(retry_id, round_, queue or "", count or 0, due, now_ms, delivery.redelivered)

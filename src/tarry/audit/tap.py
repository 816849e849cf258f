"""The tap: reads the copy of every message that returns, and closes its round in the books.

It also writes what was spooled while Postgres was away, and what consumers report of their successes. It never gives up
a message: with Postgres gone it waits, and the copies wait in `retry.audit`. Beside it, the same for what was diverted
at the cancelled gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from tarry.audit.insist import Insistence
from tarry.audit.outcomes import reported
from tarry.audit.records import Record, Return
from tarry.audit.sightings import read_sighting
from tarry.audit.spool import spooled_record
from tarry.audit.store import Store
from tarry.contract.request import Delivery
from tarry.core.names import Names
from tarry.errors import AuditUnavailableError

log = structlog.get_logger()

Unwritten = list[tuple[Delivery, str]]
"""What cannot be written at all, with the reason: somebody has to look at it, and nobody waits for it."""


@dataclass(slots=True)
class Tap:
    """One batch of `retry.audit` after the other into the store."""

    store: Store
    names: Names
    on_returns: Callable[[Sequence[Return]], None] = field(default=lambda _: None)
    _insistence: Insistence = field(default_factory=Insistence)

    @property
    def trouble(self) -> AuditUnavailableError | None:
        """Why nothing can be written now, or None."""
        return self._insistence.trouble

    async def handle(self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]) -> Unwritten:
        """Returns once the whole batch is in the books; only then may it be acknowledged."""
        write = self._insistence.write
        records = [one for one in deliveries if one.exchange == self.names.spool]
        reports = [one for one in deliveries if one.exchange == self.names.reports]
        copies = [one for one in deliveries if one.exchange not in (self.names.spool, self.names.reports)]
        spooled, unwritten = _spooled(records)
        # One retry may be in a batch with two rounds, which one statement cannot write: oldest first.
        for round_ in sorted({record.round for _, record in spooled}):
            unwritten += await write(self.store.record, [one for one in spooled if one[1].round == round_])
        seen = _sighted(copies, arrived_ms, self.names)
        unwritten += await write(self.store.returned, seen)
        self.on_returns([found for _, found in seen])
        unwritten += await write(self.store.succeeded, reported(reports))
        return unwritten


@dataclass(slots=True)
class CancelledTap:
    """One batch of `retry.cancelled` after the other into the store."""

    store: Store
    names: Names
    on_cancelled: Callable[[Sequence[Return]], None] = field(default=lambda _: None)
    _insistence: Insistence = field(default_factory=Insistence)

    @property
    def trouble(self) -> AuditUnavailableError | None:
        return self._insistence.trouble

    async def handle(self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]) -> Unwritten:
        """As the tap's. A message that was diverted twice is cancelled once."""
        seen = _sighted(deliveries, arrived_ms, self.names)
        unwritten = await self._insistence.write(self.store.cancelled, seen)
        self.on_cancelled([found for _, found in seen])
        return unwritten


def _sighted(
    deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int], names: Names
) -> list[tuple[Delivery, Return]]:
    found = ((one, read_sighting(one, arrived_ms, names)) for one in deliveries)
    return [(one, sighting) for one, sighting in found if sighting is not None]


def _spooled(deliveries: Sequence[Delivery]) -> tuple[list[tuple[Delivery, Record]], Unwritten]:
    records: list[tuple[Delivery, Record]] = []
    unwritten: Unwritten = []
    for one in deliveries:
        try:
            records.append((one, spooled_record(one)))
        except (ValueError, TypeError, KeyError):
            log.warning("not a spooled record", exc_info=True)
            unwritten.append((one, "not a spooled record: its body is not what a router writes"))
    return records, unwritten

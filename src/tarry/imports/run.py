"""The import: read a batch, publish it, wait for the broker's confirms, record it.

In that order nothing is lost: a row counts as imported only once the broker has its request. An import that is killed
in between sends at most one batch again, under the same retry ids, and the router drops what it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.amqp.url import Address
from tarry.core.names import Names
from tarry.errors import BrokerError, BrokerUnreachableError, MissingOnBrokerError
from tarry.imports.row import CannotImportError, ImportRow, request_of
from tarry.imports.source import ImportSource

BATCH = 500
PATIENCE = 60
"""How often a batch that the request queue refuses is sent again, once a second."""


@dataclass(slots=True)
class ImportProgress:
    """What was done so far; also true if the import ends early."""

    waiting: int
    """Rows that waited when the import began."""
    imported: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Keys of rows that cannot be imported, with the reason."""

    @property
    def done(self) -> int:
        return self.imported + len(self.refused)


@dataclass(frozen=True, slots=True)
class Importer:
    """Moves the waiting rows of a source to the request queue."""

    source: ImportSource
    address: Address
    names: Names
    progress: ImportProgress
    report: Callable[[ImportProgress], None] = lambda _: None
    batch: int = BATCH

    async def run(self) -> None:
        async with self.source.lock():
            identity = await self.source.identity()
            publisher = await Publisher.open(self.address, "import")
            try:
                if publisher.link.blocked:
                    raise BrokerUnreachableError(f"{self.address} has an alarm and accepts no publishes.")
                async for rows in self.source.rows(self.batch):
                    await self._move(rows, identity, publisher)
                    self.report(self.progress)
            finally:
                await publisher.link.close()

    async def _move(self, rows: Sequence[ImportRow], identity: str, publisher: Publisher) -> None:
        requests: dict[str, Message] = {}
        for row in rows:
            try:
                requests[row.key] = request_of(row, identity, self.names.scheduled, publisher.link.frame_max)
            except CannotImportError as problem:
                self.progress.refused.append((row.key, str(problem)))
        await self._send(requests, publisher)

    async def _send(self, requests: dict[str, Message], publisher: Publisher) -> None:
        """Publishes until the broker has confirmed all of them, and records each as soon as it has."""
        left = dict(requests)
        for attempt in range(PATIENCE):
            outcomes = dict(zip(left, await publisher.publish(list(left.values())), strict=True))
            confirmed = [key for key, outcome in outcomes.items() if outcome is PublishOutcome.CONFIRMED]
            await self._mark(confirmed)
            left = {key: one for key, one in left.items() if key not in set(confirmed)}
            if not left:
                return
            self._check({outcomes[key] for key in left})
            await asyncio.sleep(min(attempt, 1))
        raise BrokerError(f"{self.names.scheduled} accepts no more requests: it is full, or has lost its quorum.")

    async def _mark(self, confirmed: Sequence[str]) -> None:
        """Records these rows and counts them. If it is stopped meanwhile, it does so first: the report would leave out
        rows that are recorded, or they would be sent again.
        """

        async def mark() -> None:
            await self.source.mark(confirmed)
            self.progress.imported += len(confirmed)

        marking = asyncio.ensure_future(mark())
        try:
            await asyncio.shield(marking)
        except asyncio.CancelledError:
            await marking
            raise

    def _check(self, outcomes: set[PublishOutcome]) -> None:
        if PublishOutcome.RETURNED in outcomes:
            raise MissingOnBrokerError(f"There is no queue {self.names.scheduled}: run `tarry topology apply` first.")
        if PublishOutcome.UNKNOWN in outcomes:
            raise BrokerUnreachableError(f"The connection to {self.address} ended before it had confirmed a batch.")

"""The periodic pass over the books: what is overdue, missing or stalled; success presumed; old history dropped.

Every router may run it: the reading is everybody's, the writing is done by whoever has the lock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import structlog

from tarry.attach.listing import Attachment, attachments
from tarry.attach.survey import read_survey
from tarry.audit.report import GRACE, Report, report
from tarry.audit.retention import SLICE, prune_books
from tarry.audit.stalls import Flow, Stall, stalls
from tarry.audit.status import Counts, read_counts
from tarry.audit.store import GIVE_BACK, LEASE
from tarry.audit.verify import Auditor, Look, Rules
from tarry.broker.management import Management
from tarry.core.names import Names
from tarry.errors import BrokerError

log = structlog.get_logger()

PRUNE_EVERY = 3_600.0
RECENT = timedelta(hours=1)
STALE_CLAIM = timedelta(seconds=30)
"""A claim so old is given back, whichever router made it: that one was cut off or killed. If it is at work all the
same, its record makes the round again."""
BACKLOG = 1_000
"""With more requests than this waiting, silence is no sign of success: the failure may be among them."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What the pass goes by. None switches a part off."""

    quiet: timedelta | None = timedelta(minutes=15)
    """A return that long ago without a new failure counts as success; longer than any consumer takes for a message."""
    grace: timedelta = GRACE
    keep: timedelta | None = timedelta(days=30)
    """How long history and finished retries are kept."""
    keep_payloads: timedelta | None = None
    """How long the payloads of finished retries are kept, if not as long."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a pass found, for metrics and logs."""

    counts: Counts
    missing: int
    """Open retries that the broker does not have, counting those that cannot be named yet; at two looks in a row."""
    late: int
    """Overdue ones that are still on the broker."""
    oldest_overdue_s: float
    stalled: tuple[Stall, ...]
    open_by_tier: Mapping[str, int]
    depth_by_tier: Mapping[str, int]
    presumed: int = 0
    noted: int = 0
    """Rounds that were noted as overdue now, for the first time."""
    attachments: tuple[Attachment, ...] | None = None
    """Everything that is attached, with its state; None where the broker could not be asked."""


@dataclass(slots=True)
class Keeper:
    """Makes passes. Blocking: give it a thread."""

    dsn: str
    names: Names
    management: Management
    actor: str
    upkeep: Upkeep = Upkeep()
    _before: Look | None = None
    _looked_at: float = field(default_factory=time.monotonic)
    _pruned_at: float | None = None

    def __call__(self) -> Findings:
        """One pass."""
        with report(self.dsn) as books:
            auditor = Auditor(books, self.management, self.names, Rules(self.upkeep.grace, patience=0.0))
            look = auditor.look()
            findings = self._findings(books, look)
            if books.rows("lock_upkeep")[0][0]:
                findings = self._write(books, look, findings)
        return findings

    def _findings(self, books: Report, look: Look) -> Findings:
        before, self._before = self._before, look
        overdue = [(look.snapshot.now - row.due).total_seconds() for row in look.snapshot.overdue]
        return Findings(
            counts=read_counts(books, self.upkeep.grace),
            missing=min(before.verdict.lost, look.verdict.lost) if before else 0,
            late=len(look.verdict.late),
            oldest_overdue_s=max(overdue, default=0.0),
            stalled=tuple(self._stalls(books, before, look)),
            open_by_tier={row[0]: row[1] for row in books.rows("open_by_tier") if row[0]},
            depth_by_tier={name: depth.messages for name, depth in look.depths.tiers.items()},
            attachments=self._attachments(),
        )

    def _attachments(self) -> tuple[Attachment, ...] | None:
        """What cannot be read here must not keep the rest of the pass from being made."""
        try:
            return tuple(attachments(read_survey(self.management, self.names)))
        except BrokerError as error:
            log.warning("attachments were not checked", reason=str(error))
            return None

    def _stalls(self, books: Report, before: Look | None, look: Look) -> list[Stall]:
        since, self._looked_at = self._looked_at, time.monotonic()
        if before is None:
            return []
        lately = timedelta(seconds=self._looked_at - since)
        return stalls(
            before.depths,
            look.depths,
            _flow(books.rows("returned_lately", lately=lately)),
            _flow(books.rows("returned_lately", lately=RECENT)),
            _flow(books.rows("overdue_by_tier", grace=self.upkeep.grace)),
        )

    def _write(self, books: Report, look: Look, findings: Findings) -> Findings:
        books.rows("add_partitions")
        given_back = books.change("give_back", **GIVE_BACK | {"older_than": STALE_CLAIM, "actor": self.actor})
        given_back += books.change("close_superseded", older_than=LEASE, actor=self.actor)
        if given_back:
            log.info("stale claims were given back", number=given_back)
        noted = books.change("note_overdue", grace=self.upkeep.grace, actor=self.actor)
        presumed = self._presume(books) if look.depths[self.names.scheduled].messages <= BACKLOG else 0
        self._prune(books)
        return replace(findings, noted=noted, presumed=presumed)

    def _presume(self, books: Report) -> int:
        total = 0
        while self.upkeep.quiet is not None:
            count = books.change("presume_success", quiet=self.upkeep.quiet, limit=SLICE)
            total += count
            if count < SLICE:
                break
        return total

    def _prune(self, books: Report) -> None:
        now = time.monotonic()
        if self.upkeep.keep is None or (self._pruned_at is not None and now - self._pruned_at < PRUNE_EVERY):
            return
        self._pruned_at = now
        pruned = prune_books(books, self.upkeep.keep, self.upkeep.keep_payloads)
        if pruned.partitions or pruned.retries or pruned.payloads:
            log.info("old history dropped", days=len(pruned.partitions), retries=pruned.retries)


def _flow(rows: list[tuple[str | None, str, int]]) -> Flow:
    return {(tier or "", queue): count for tier, queue, count in rows}

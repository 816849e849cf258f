"""How things stand, from the books and from the broker; what one of them cannot tell is left out, and said."""

from __future__ import annotations

from dataclasses import dataclass

from tarry.audit.depths import Depths, read_depths
from tarry.audit.report import GRACE
from tarry.audit.status import Counts, InTier, in_tiers
from tarry.broker.management import Management
from tarry.control.books import Row
from tarry.control.desk import Desk
from tarry.errors import AuditError, BrokerError
from tarry.router.threads import in_thread

PATIENCE = 5
"""Seconds that the management API has for an answer."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One look."""

    books: Counts | None
    tiers: list[InTier]
    queues: dict[str, int]
    """The queues that somebody reads: a backlog there is somebody's business."""
    troubles: list[str]
    """What could not be asked, and why."""


async def look(desk: Desk) -> Standing:
    troubles: list[str] = []
    depths = await _depths(desk, troubles)
    counts, rows = await _books(desk, troubles)
    names = desk.names
    read = (names.scheduled, names.audit, names.review_queue, names.unroutable, names.cancelled)
    queues = {name: depths[name].messages for name in read} if depths else {}
    return Standing(counts, in_tiers(rows, depths), queues, troubles)


async def _depths(desk: Desk, troubles: list[str]) -> Depths | None:
    def ask() -> Depths:
        return read_depths(Management(desk.address, timeout=PATIENCE), desk.names)

    try:
        return await in_thread(ask, "status")
    except BrokerError as error:
        troubles.append(str(error))
        return None


async def _books(desk: Desk, troubles: list[str]) -> tuple[Counts | None, list[Row] | None]:
    try:
        async with desk.books.page() as page:
            counts = await page.rows("counts", grace=GRACE)
            return Counts(*counts[0]), await page.rows("open_by_tier")
    except AuditError as error:
        troubles.append(str(error))
        return None, None

"""How far events are behind the history, and what holds them up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tarry.core.durations import humanise
from tarry.core.json_types import DOCUMENTED
from tarry.store.database import Queries

SHOWN_FROM = 5.0
"""Seconds of lag from which the transaction that holds events up is looked for. A short one is normal."""


@dataclass(frozen=True, slots=True)
class EventsHolder:
    """The oldest transaction in the cluster that writes and is not over. Events wait for it, since it may still commit
    a step.
    """

    __pydantic_config__ = DOCUMENTED

    pid: int | None
    """Its backend process; null for a prepared transaction."""
    application: str | None
    """Null if the user in DATABASE_URL may not see it: it is visible to members of pg_read_all_stats."""
    since: datetime | None
    """When the transaction started."""
    prepared: str | None
    """The name of a prepared transaction."""

    def describe(self) -> str:
        if self.prepared is not None:
            return f"the prepared transaction {self.prepared!r}: commit it or roll it back"
        who = f" ({self.application})" if self.application else ""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        end = f"to end it: select pg_terminate_backend({self.pid})"
        return f"backend {self.pid}{who}, whose transaction runs{since}; {end}"


@dataclass(frozen=True, slots=True)
class EventsStatus:
    """The progress of the events."""

    __pydantic_config__ = DOCUMENTED

    published: int
    """Since events were first enabled."""
    lag_s: float
    """Seconds since the oldest step was written that has not been published; 0 if all have been."""
    held_up_by: EventsHolder | None

    def describe(self) -> str:
        cause = f": held up by {self.held_up_by.describe()}" if self.held_up_by else ""
        return f"events are {humanise(self.lag_s * 1_000)} behind{cause}"


async def read_events_status(store: Queries) -> EventsStatus | None:
    """None if events have never been enabled."""
    row = await store.one("event_lag")
    if row is None:
        return None
    published, lag, oldest_xid = row[0], max(0.0, row[1] or 0.0), row[2]
    holder = await store.one("event_holder", oldest_xid=oldest_xid) if lag >= SHOWN_FROM else None
    return EventsStatus(published, lag, EventsHolder(*holder) if holder else None)

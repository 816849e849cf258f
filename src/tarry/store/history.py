"""The history of one message: every step of each of its retries, with times and drifts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tarry.core.id_prefix import SHOWN, as_uuid, only, uuid_range
from tarry.store.database import Queries


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a timeline."""

    round: int
    state: str
    at: datetime
    actor: str
    reason: str | None
    detail: Mapping[str, Any] | None

    @property
    def drift_ms(self) -> int | None:
        found = (self.detail or {}).get("drift_ms")
        return None if found is None else int(found)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One retry: a message that failed in one queue."""

    retry_id: str
    message_id: str | None
    queue: str
    state: str
    round: int
    retry_count: int
    max_retries: int | None
    policy: str | None
    error_class: str | None
    error_type: str | None
    error_reason: str | None
    fingerprint: str | None
    first_failed: datetime
    due: datetime | None
    returned: datetime | None
    drift_ms: int | None
    tier: str | None
    body_size: int | None
    """None if the payload was not stored."""
    owner: str | None = None
    """Whom the message belongs to, as its request said."""
    job_type: str | None = None
    priority: str | None = None
    steps: tuple[Step, ...] = ()


async def timelines(
    store: Queries, called: str, *, by_message_id: bool = True, most_steps: int | None = None
) -> list[Timeline]:
    """Timelines for a retry id or a prefix of one, or for a message id (one per queue that it failed in); empty if
    unknown. With `most_steps`, only the latest steps of each.
    """
    message_id = called if by_message_id else None
    rows = await store.rows("retries_called", called=message_id, id=await retry_id_of(store, called))
    return [replace(Timeline(*row), steps=await steps_of(store, row[0], most_steps)) for row in rows]


async def steps_of(store: Queries, retry_id: str, most: int | None = None) -> tuple[Step, ...]:
    """The steps of one retry, oldest first; with `most`, only the latest ones."""
    return tuple(Step(*row) for row in await store.rows("transitions_of", id=retry_id, limit=most))


async def retry_id_of(store: Queries, called: str) -> str | None:
    """The retry id, complete: `called` is an id or a prefix of one. None if it is neither, or the id of a message."""
    bounds = uuid_range(called)
    if bounds is None:
        return as_uuid(called)
    rows = await store.rows("retries_beginning", called=called, low=bounds.low, high=bounds.high, limit=SHOWN + 1)
    return only(called, [(row[0], row[1]) for row in rows])

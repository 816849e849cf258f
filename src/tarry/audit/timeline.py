"""The history of one message: every step of each of its retries, with times and drifts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tarry.audit.report import Report
from tarry.core.id_prefix import SHOWN, as_uuid, only, uuid_range


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a timeline."""

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
    """None where the payload was not kept."""
    steps: tuple[Step, ...] = ()


def timelines(books: Report, called: str) -> list[Timeline]:
    """Of a message id (one for each queue that it failed in), a retry id or its beginning; empty if unknown."""
    retry_id = _whole_id(books, called)
    found = [Timeline(*row) for row in books.rows("retries_called", called=called, id=retry_id)]
    return [replace(one, steps=tuple(_steps(books, one.retry_id))) for one in found]


def _whole_id(books: Report, called: str) -> str | None:
    bounds = uuid_range(called)
    if bounds is None:
        return as_uuid(called)
    rows = books.rows("retries_beginning", called=called, low=bounds.low, high=bounds.high, limit=SHOWN + 1)
    return only(called, [(row[0], row[1]) for row in rows])


def _steps(books: Report, retry_id: str) -> Iterator[Step]:
    return (Step(*row) for row in books.rows("transitions_of", id=retry_id))

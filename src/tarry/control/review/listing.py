"""What is in review by the books: pages, groups, and one message with all that is known of it. No payloads in lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from tarry.audit.timeline import Step
from tarry.control.desk import Desk
from tarry.control.ids import whole_fingerprint, whole_retry_id
from tarry.control.review.describe import describe
from tarry.control.review.filters import Filter, cursor_of, read_cursor
from tarry.core.id_prefix import RULE, as_uuid
from tarry.errors import AmbiguousIdError, BrokerError, ConflictError, NotFoundError, SettingsError

By = Literal["queue", "reason", "fingerprint", "age"]
BYS: tuple[By, ...] = ("queue", "reason", "fingerprint", "age")
MOST = 1_000
"""Lines of a page."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message in review."""

    retry_id: str
    message_id: str | None
    queue: str
    round: int
    retry_count: int
    max_retries: int | None
    policy: str | None
    error_class: str | None
    error_type: str | None
    error_reason: str | None
    fingerprint: str | None
    reason: str | None
    since: datetime
    first_failed: datetime
    size: int | None
    """Bytes of its payload; None where it is not in the books, only in the queue."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A page, and where the next one begins."""

    items: tuple[Item, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """Messages in review that have one side in common."""

    key: str
    count: int
    oldest: datetime
    newest: datetime
    queues: int
    queue: str
    """One of them."""
    error_type: str | None
    error_reason: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The queue and the books, by number. They differ for good reasons: `check` tells which."""

    books: int
    queue: int | None
    """Ready in the queue right now; None where the broker does not answer."""


@dataclass(frozen=True, slots=True)
class Edit:
    """How a message was changed when it was sent on, and its original."""

    id: str
    round: int
    job_id: str
    at: datetime
    actor: str
    changes: dict[str, Any]
    body: bytes | None = None
    """The original's, if payloads were asked for."""
    properties: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Detail:
    """One message in review with its history; the payload only if it was asked for."""

    item: Item
    exchange: str
    routing_key: str
    job_id: str | None
    """The job that has it in work."""
    steps: tuple[Step, ...]
    edits: tuple[Edit, ...]
    body: bytes | None = None
    properties: dict[str, Any] | None = None


async def summary(desk: Desk) -> Summary:
    counted = await desk.books.rows("review_count", **Filter().parameters())
    try:
        queue: int | None = await desk.binder.depth(desk.names.review_queue)
    except BrokerError:
        queue = None
    return Summary(int(counted[0][0]), queue)


async def count(desk: Desk, chosen: Filter) -> int:
    chosen = await completed(desk, chosen)
    return int((await desk.books.rows("review_count", **chosen.parameters()))[0][0])


async def completed(desk: Desk, chosen: Filter) -> Filter:
    """With the whole fingerprint, where its beginning was given."""
    return replace(chosen, fingerprint=await whole_fingerprint(desk.books, chosen.fingerprint))


async def page(desk: Desk, chosen: Filter, *, limit: int = 50, cursor: str | None = None) -> Listed:
    """Oldest first."""
    if not 1 <= limit <= MOST:
        raise SettingsError(f"A page has from 1 to {MOST:,} lines, not {limit:,}: use the cursor for more.")
    chosen = await completed(desk, chosen)
    at, last = read_cursor(cursor)
    rows = await desk.books.rows("review_page", **chosen.parameters(), cursor_at=at, cursor_id=last, limit=limit + 1)
    items = tuple(Item(*row) for row in rows[:limit])
    more = len(rows) > limit
    return Listed(items, cursor_of(items[-1].since, items[-1].retry_id) if more else None)


async def groups(desk: Desk, by: By, chosen: Filter, *, limit: int = 50) -> list[Group]:
    """The largest first."""
    if by not in BYS:
        raise SettingsError(f"There are no groups by {by!r}: use one of {', '.join(BYS)}.")
    chosen = await completed(desk, chosen)
    return [Group(*row) for row in await desk.books.rows("review_groups", **chosen.parameters(), by=by, limit=limit)]


async def resolve(desk: Desk, called: Sequence[str]) -> tuple[str, ...]:
    """The retry ids of those in review that are called so: by retry id, its beginning, or message id."""
    return tuple([await _resolve(desk, one) for one in called])


async def _resolve(desk: Desk, called: str) -> str:
    name = await whole_retry_id(desk.books, called.replace("\x00", ""))
    rows = await desk.books.rows("review_ids", called=name, id=as_uuid(name))
    inside = [row for row in rows if row[3] == "in_review"]
    if not rows:
        raise NotFoundError(
            f"Nothing is known of {called!r}: it is no message id and no retry id in these books. If the message is in "
            f"the queue all the same, `tarry review check` tells of it. {RULE}"
        )
    if not inside:
        raise ConflictError(f"{called!r} is not in review: it is {rows[0][3]} in round {rows[0][4]}.")
    if len(inside) > 1:
        ids = ", ".join(f"{row[0]} (from {row[2]!r})" for row in inside)
        raise AmbiguousIdError(
            f"{called!r} is the message id of {len(inside)} in review: say which by its retry id: {ids}."
        )
    return str(inside[0][0])


async def show(desk: Desk, called: str, *, payload: bool = False) -> Detail:
    (retry_id,) = await resolve(desk, [called])
    found = await page(desk, Filter(ids=(retry_id,)), limit=1)
    stored = await desk.books.one("review_one", id=retry_id)
    if not found.items or stored is None:
        raise ConflictError(f"{called!r} has just left the review: look again with `tarry history {retry_id}`.")
    job = await desk.books.one("review_job_of", id=retry_id)
    steps = await desk.books.rows("transitions_of", id=retry_id)
    edits = await desk.books.rows("review_edits_of", id=retry_id)
    body, properties, exchange, key = stored
    return Detail(
        item=found.items[0],
        exchange=exchange,
        routing_key=key,
        job_id=job[0] if job else None,
        steps=tuple(Step(*row) for row in steps),
        edits=tuple(Edit(*row[:6], *((row[6], describe(row[7])) if payload else ())) for row in edits),
        body=body if payload else None,
        properties=describe(properties) if payload and properties is not None else None,
    )

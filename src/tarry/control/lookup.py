"""Looking things up for operators: retries by the page, one with its timeline, its payload, and who did what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal

from tarry.audit.timeline import Step, Timeline
from tarry.contract.fields import BadTableError, Field, walk
from tarry.contract.properties import Properties
from tarry.control.books import Books
from tarry.control.ids import whole_fingerprint, whole_retry_id
from tarry.core.id_prefix import RULE, as_uuid, uuid_range
from tarry.core.states import State
from tarry.errors import NotFoundError

NOBODY = "00000000-0000-0000-0000-000000000000"
"""Before every id."""

_READABLE = tuple(one.name for one in fields(Properties) if one.name != "headers")

MOST_STEPS = 1_000
"""Of one timeline; the latest count."""


@dataclass(frozen=True, slots=True)
class Found:
    """A retry in a list: where it stands, without its payload."""

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
    """Its beginning."""
    fingerprint: str | None
    tier: str | None
    first_failed: datetime
    due: datetime | None
    returned: datetime | None
    drift_ms: int | None
    body_size: int | None
    """None where the payload was not kept."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which retries; None is any."""

    states: Sequence[State] | None = None
    queue: str | None = None
    fingerprint: str | None = None
    message_id: str | None = None
    due_after: datetime | None = None
    due_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a list goes on: behind this one."""

    order: Literal["id", "due"] = "id"
    after: str = NOBODY
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """A message as it was stored."""

    body: bytes
    properties: dict[str, str | int]
    headers: dict[str, str | int | None]
    """None is a value that is neither text nor a whole number."""


@dataclass(frozen=True, slots=True)
class Done:
    """One line of the log of actions."""

    id: str
    at: datetime
    actor: str
    kind: str
    target: str
    detail: Mapping[str, Any]
    outcome: Mapping[str, Any] | None
    """None: it is under way, or was cut off."""
    finished: datetime | None


async def list_retries(books: Books, wanted: Wanted, place: Place, limit: int) -> list[Found]:
    filters = {
        "states": None if wanted.states is None else [state.value for state in wanted.states],
        "queue": wanted.queue,
        "fingerprint": await whole_fingerprint(books, wanted.fingerprint),
        "message_id": wanted.message_id,
        "due_after": wanted.due_after,
        "due_before": wanted.due_before,
    }
    behind = {"after": place.after} | ({"after_due": place.due} if place.order == "due" else {})
    return [Found(*row) for row in await books.rows(f"retries_by_{place.order}", limit=limit, **filters, **behind)]


async def timeline_of(books: Books, called: str) -> Timeline:
    """By the retry id, or its beginning."""
    retry_id = await _whole_id(books, called)
    row = await books.one("retry_called", id=retry_id)
    if row is None:
        raise unknown(called)
    steps = await books.rows("latest_transitions", id=retry_id, limit=MOST_STEPS)
    return replace(Timeline(*row), steps=tuple(Step(*step) for step in steps))


async def payload_of(books: Books, called: str) -> Payload:
    """By the retry id, or its beginning."""
    retry_id = await _whole_id(books, called)
    row = await books.one("retry_payload", id=retry_id)
    if row is None:
        raise unknown(called)
    body, properties = row
    if body is None:
        raise NotFoundError(
            f"The payload of {retry_id} was not kept: its policy says keep_payload = false, or it was too large, or it "
            "was pruned."
        )
    return Payload(bytes(body), *_readable(bytes(properties or b"")))


async def latest_actions(
    books: Books,
    *,
    limit: int,
    actor: str | None = None,
    kind: str | None = None,
    target: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> list[Done]:
    """`target` is the whole of it, or the beginning of an id."""
    at, last = before or (None, NOBODY)
    low, high, begins = uuid_range(target or "") or (None, None, None)
    rows = await books.rows(
        "latest_actions",
        actor=actor,
        kind=kind,
        target=target,
        low=low,
        high=high,
        begins=begins,
        before_at=at,
        before=last,
        limit=limit,
    )
    return [Done(*row) for row in rows]


async def _whole_id(books: Books, called: str) -> str | None:
    return as_uuid(await whole_retry_id(books, called))


def unknown(retry_id: str) -> NotFoundError:
    return NotFoundError(
        f"No retry has the id {retry_id}. It is in the message's header `tarry-id`; by message id use "
        f"`tarry history` or GET /api/v1/retries?message_id=… {RULE}"
    )


def _readable(raw: bytes) -> tuple[dict[str, str | int], dict[str, str | int | None]]:
    """What a person can read of the stored properties and headers."""
    try:
        found = Properties.decode(raw) if raw else Properties()
        headers = {_text(name): _plain(field) for name, field in walk(found.headers or b"")}
    except BadTableError:
        return {}, {}
    plain = {
        name: _text(value) if isinstance(value, bytes) else value
        for name in _READABLE
        if (value := getattr(found, name)) is not None
    }
    return plain, headers


def _plain(field: Field) -> str | int | None:
    text = field.text()
    return field.integer() if text is None else text


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")

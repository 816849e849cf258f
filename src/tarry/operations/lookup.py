"""Reads retries, timelines, payloads and the action log; completes an abbreviated id before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal

from tarry.amqp.field_tables import BadTableError, Field, walk
from tarry.amqp.properties import Properties
from tarry.core.id_prefix import RULE, SHOWN, IdRange, fingerprint_range, only, uuid_range
from tarry.core.json_types import DOCUMENTED, Base64
from tarry.core.queue_scope import QueueScope, escape_like
from tarry.core.states import State
from tarry.errors import NotFoundError
from tarry.operations.paging import Page, read_cursor, write_cursor
from tarry.store.database import PostgresPool, SessionSettings
from tarry.store.history import Timeline, retry_id_of, timelines


async def whole_retry_id(store: PostgresPool, called: str) -> str:
    """The retry id that begins with `called`; `called` itself if there is none, or if it is the id of a message."""
    return await _whole_of(store, "retries_beginning", called, uuid_range(called), called=called)


async def whole_job_id(store: PostgresPool, called: str) -> str:
    return await _whole_of(store, "jobs_beginning", called, uuid_range(called))


async def whole_fingerprint(store: PostgresPool, text: str | None) -> str | None:
    return None if text is None else await _whole_of(store, "fingerprints_beginning", text, fingerprint_range(text))


async def _whole_of(store: PostgresPool, name: str, text: str, bounds: IdRange | None, **more: str) -> str:
    if bounds is None:
        return text
    rows = await store.rows(name, low=bounds.low, high=bounds.high, limit=SHOWN + 1, **more)
    return only(text, [(row[0], row[1]) for row in rows]) or text


NOBODY = "00000000-0000-0000-0000-000000000000"
"""Sorts before every id."""

_READABLE = tuple(one.name for one in fields(Properties) if one.name != "headers")

SEARCHED = 3_000
"""Retries that one page searches by policy and error, for which there is no index, and actions that one page searches
for a limited token. A page may have none that match, and a cursor."""

MOST_STEPS = 1_000
"""The most steps of one timeline that are read: the latest ones."""


@dataclass(frozen=True, slots=True)
class RetryRow:
    """A retry in a list: its state, without its payload."""

    __pydantic_config__ = DOCUMENTED

    retry_id: str
    message_id: str | None
    queue: str
    """The queue it failed in."""
    state: str
    round: int
    retry_count: int
    """Retries used, including the one that is waiting."""
    max_retries: int | None
    policy: str | None
    error_class: str | None
    error_type: str | None
    error_reason: str | None
    """Only the beginning of the reason."""
    fingerprint: str | None
    """Equal for errors that differ only in numbers and ids."""
    tier: str | None
    """The first queue that it waits in."""
    first_failed: datetime
    due: datetime | None
    returned: datetime | None
    drift_ms: int | None
    """How long after its due time it last returned."""
    body_size: int | None
    """Size of the stored payload in bytes; null if it was not stored."""
    owner: str | None = None
    """Whom the message belongs to, as its request said."""
    job_type: str | None = None
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class RetryFilter:
    """Which retries to list; None matches any."""

    states: Sequence[State] | None = None
    queue: str | None = None
    fingerprint: str | None = None
    message_id: str | None = None
    due_after: datetime | None = None
    due_before: datetime | None = None
    owner: str | None = None
    policy: str | None = None
    error: str | None = None
    """The type of the error, or a part of its reason, in any case of letters."""
    scope: QueueScope | None = None
    """Set for a token that is limited to some queues."""

    def parameters(self) -> dict[str, Any]:
        """The parameters of the SQL queries."""
        return {
            "states": None if self.states is None else [state.value for state in self.states],
            "queue": self.queue,
            "fingerprint": self.fingerprint,
            "message_id": self.message_id,
            "due_after": self.due_after,
            "due_before": self.due_before,
            "owner": self.owner,
            "policy": self.policy,
            "error": self.error,
            "error_like": None if self.error is None else f"%{escape_like(self.error)}%",
            "scope": None if self.scope is None else self.scope.likes(),
        }

    def conditions(self) -> dict[str, Any]:
        """The conditions that are set, as plain values: for the store, the HTTP API and for display."""
        return {one.name: plain_condition(value) for one in fields(self) if (value := getattr(self, one.name))}


def plain_condition(value: str | datetime | Sequence[str] | QueueScope) -> str | list[str]:
    if isinstance(value, QueueScope):
        return list(value.globs)
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, str) else [str(one) for one in value]


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A message as it was stored."""

    __pydantic_config__ = DOCUMENTED

    body: Base64
    """The payload, in base64."""
    size: int
    properties: dict[str, str | int]
    headers: dict[str, str | int | None]
    """null for a value that is neither text nor an integer."""


@dataclass(frozen=True, slots=True)
class ActionRow:
    """One action of an operator, from the action log."""

    __pydantic_config__ = DOCUMENTED

    id: str
    at: datetime
    actor: str
    """The name of the token and who it was used for; or user@host for a command."""
    kind: str
    target: str
    """What the action was applied to."""
    detail: dict[str, Any]
    outcome: dict[str, Any] | None
    """null if the action is in progress, or was interrupted."""
    finished: datetime | None
    origin: str | None = None
    """From where it was requested: `dashboard` or `api` with the address, or `command`; null if that is not known."""


Order = Literal["id", "due"]


async def list_retries(
    store: PostgresPool, wanted: RetryFilter, *, order: Order | None = None, limit: int, cursor: str | None = None
) -> Page[RetryRow]:
    """By default in order of id, or of due time if the filter has one. A list by due time has only what waits."""
    by = order or ("due" if wanted.due_after or wanted.due_before else "id")
    due, after = read_cursor(cursor, by) if cursor else (None, NOBODY)
    filters = (await completed(store, wanted)).parameters()
    if wanted.queue is not None and wanted.states is None:
        filters["states"] = [state.value for state in State]  # the index of queues begins with the state
    behind = {"after": after} | ({"after_due": due} if by == "due" else {})
    if wanted.policy or wanted.error:
        rows = await store.rows(f"retries_searched_by_{by}", limit=limit + 1, part=SEARCHED, **filters, **behind)
        found, end = [RetryRow(*row[:-3]) for row in rows if row[0] is not None], rows[0][-3:]
    else:
        rows = await store.rows(f"retries_by_{by}", limit=limit + 1, **filters, **behind)
        found, end = [RetryRow(*row) for row in rows], (None, None, 0)
    if len(found) > limit:
        last = found[limit - 1]
        return Page(found[:limit], write_cursor(by, last.due if by == "due" else None, last.retry_id))
    last_due, last_id, size = end
    return Page(found, write_cursor(by, last_due if by == "due" else None, last_id) if size == SEARCHED else None)


async def completed(store: PostgresPool, wanted: RetryFilter) -> RetryFilter:
    """The filter with a fingerprint prefix replaced by the whole fingerprint."""
    return replace(wanted, fingerprint=await whole_fingerprint(store, wanted.fingerprint))


async def timeline_of(store: PostgresPool, called: str) -> Timeline:
    """The timeline of the retry with this id; the beginning of the id is enough."""
    found = await timelines(store, called, by_message_id=False, most_steps=MOST_STEPS)
    if not found:
        raise unknown(called)
    return found[0]


async def history(store: PostgresPool, called: str) -> list[Timeline]:
    """The timelines of a retry, or of all retries of a message."""
    async with store.dedicated(SessionSettings.REPORT) as session:
        found = await timelines(session, called)
    if not found:
        raise NotFoundError(
            f"Nothing is known of {called!r}: the audit has no such message id or retry id. "
            f"A message without an id is found by its retry id, in its header `tarry-id` or in the log. {RULE}"
        )
    return found


async def payload_of(store: PostgresPool, called: str) -> StoredPayload:
    """The payload of the retry with this id; the beginning of the id is enough."""
    retry_id = await retry_id_of(store, called)
    row = await store.one("retry_payload", id=retry_id)
    if row is None:
        raise unknown(called)
    body, properties = row
    if body is None:
        raise NotFoundError(
            f"The payload of {retry_id} was not kept: its policy says keep_payload = false, or it was too large, or it "
            "was pruned."
        )
    return StoredPayload(bytes(body), len(body), *_readable(bytes(properties or b"")))


async def latest_actions(
    store: PostgresPool,
    *,
    limit: int,
    actor: str | None = None,
    kind: str | None = None,
    target: str | None = None,
    cursor: str | None = None,
    scope: QueueScope | None = None,
) -> Page[ActionRow]:
    """`target` is the complete target, or the beginning of an id. With a scope, only pauses and resumes of its queues,
    and cancels and retry-nows of retries in them; a page then searches a part of the log, and may have none that match.
    """
    before_at, before = read_cursor(cursor, "at") if cursor else (None, NOBODY)
    low, high, begins = uuid_range(target or "") or (None, None, None)
    wanted: dict[str, Any] = {
        "actor": actor,
        "kind": kind,
        "target": target,
        "low": low,
        "high": high,
        "begins": begins,
    }
    wanted |= {"before_at": before_at, "before": before, "limit": limit + 1}
    if scope is None:
        found, end = [ActionRow(*row) for row in await store.rows("latest_actions", **wanted)], (None, "", 0)
    else:
        rows = await store.rows("latest_actions_in_scope", **wanted, scope=scope.likes(), part=SEARCHED)
        found, end = [ActionRow(*row[:-3]) for row in rows if row[0] is not None], rows[0][-3:]
    shown = [one for one in found[:limit] if scope is None or _is_shown(one, scope)]
    if len(found) > limit:
        return Page(shown, write_cursor("at", found[limit - 1].at, found[limit - 1].id))
    last_at, last_id, size = end
    return Page(shown, write_cursor("at", last_at, last_id) if size == SEARCHED else None)


def _is_shown(action: ActionRow, scope: QueueScope) -> bool:
    """A glob may match more than the scope allows."""
    return action.kind not in {"pause", "resume"} or scope.covers(action.target)


def unknown(retry_id: str) -> NotFoundError:
    return NotFoundError(
        f"No retry has the id {retry_id}. It is in the message's header `tarry-id`; by message id use "
        f"`tarry history` or GET /api/v1/retries?message_id=… {RULE}"
    )


def _readable(raw: bytes) -> tuple[dict[str, str | int], dict[str, str | int | None]]:
    """The readable part of the stored properties and headers."""
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

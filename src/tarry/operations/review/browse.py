"""Lists, groups and shows the messages in review. One `Filter` serves listing, grouping and selecting."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, pick
from tarry.contract import headers as h
from tarry.contract.deaths import Death, deaths
from tarry.contract.header_reader import LenientReader
from tarry.contract.message import Acceptance, Refused
from tarry.contract.review import refused
from tarry.core.id_prefix import RULE, as_uuid
from tarry.core.json_types import DOCUMENTED, Base64
from tarry.core.names import Names
from tarry.core.queue_scope import QueueScope, escape_like, like
from tarry.errors import AmbiguousIdError, BrokerError, Code, NotFoundError, SettingsError
from tarry.operations.context import OperatorContext
from tarry.operations.lookup import plain_condition, whole_fingerprint, whole_retry_id
from tarry.operations.paging import Page, read_cursor, write_cursor
from tarry.operations.review.message import describe
from tarry.store.database import Row
from tarry.store.history import Step, retry_id_of, steps_of


@dataclass(frozen=True, slots=True)
class Filter:
    """A message matches if it meets every condition that is set."""

    queue: str | None = None
    """A name, or a glob of * and ?. An empty string matches messages that do not name the queue they failed in."""
    reason: str | None = None
    """A substring of the review reason."""
    fingerprint: str | None = None
    error_type: str | None = None
    """A name, or a glob of * and ?."""
    before: datetime | None = None
    """Matches messages that went to review before this time."""
    after: datetime | None = None
    ids: tuple[str, ...] | None = None
    """Retry ids."""
    scope: QueueScope | None = None
    """Set for a token that is limited to some queues."""
    owner: str | None = None

    def parameters(self) -> dict[str, Any]:
        """The parameters of the SQL queries."""
        return {
            "queue": None if self.queue is None else like(self.queue),
            "reason": None if self.reason is None else f"%{escape_like(self.reason)}%",
            "fingerprint": self.fingerprint,
            "error_type": None if self.error_type is None else like(self.error_type),
            "before": self.before,
            "after": self.after,
            "ids": None if self.ids is None else list(self.ids),
            "scope": None if self.scope is None else self.scope.likes(),
            "owner": self.owner,
        }

    def conditions(self) -> dict[str, Any]:
        """The conditions that are set, as plain values: for the store, the HTTP API and for display."""
        return {name: plain_condition(value) for name in self.__slots__ if (value := getattr(self, name)) is not None}

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition except the scope."""
        return not self.conditions().keys() - {"scope"}


BY_HAND = "put into the review queue by hand"

_DEATHS = h.DEATHS.encode()


def read_unlisted(delivery: Delivery, accept: Acceptance) -> Refused:
    """Reads a message that has no tarry id and gives it a new one.

    A request that the broker dead-lettered into review is read as it was in the intake queue.
    """
    death = _last(delivery)
    if death is None or death.queue != accept.names.scheduled:
        return refused(delivery, str(uuid.uuid4()), BY_HAND, accept)
    requested = delivery._replace(exchange=death.exchange)
    return refused(requested, str(uuid.uuid4()), _reason(death, accept.names), accept)


def _reason(death: Death, names: Names) -> str:
    """The broker dead-letters messages from the intake queue if no router has settled them."""
    if death.reason == "expired":
        return f"expired in {names.scheduled} before a router read it"
    return f"dead-lettered as {death.reason[:40]!r} from {names.scheduled} before a router settled it"


def _last(delivery: Delivery) -> Death | None:
    try:
        found = pick(delivery.properties.headers or b"", {_DEATHS}).get(_DEATHS)
        return next(deaths(found, LenientReader.decoding), None)
    except BadTableError:
        return None


By = Literal["queue", "reason", "fingerprint", "owner", "age"]
BYS: tuple[By, ...] = ("queue", "reason", "fingerprint", "owner", "age")
MOST = 1_000
"""The largest number of items in a page."""


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One message in review; never with its payload."""

    __pydantic_config__ = DOCUMENTED

    retry_id: str
    message_id: str | None
    queue: str
    """The queue it failed in; empty if it does not name one."""
    round: int
    retry_count: int
    max_retries: int | None
    policy: str | None
    error_class: str | None
    error_type: str | None
    error_reason: str | None
    fingerprint: str | None
    reason: str | None
    """Why it is in review."""
    since: datetime
    """In review since."""
    first_failed: datetime
    size: int | None
    """Payload size in bytes; null if the payload is only in the queue and not in the store."""
    owner: str | None
    """Whom the message belongs to, as its request said."""


@dataclass(frozen=True, slots=True)
class Group:
    """Messages in review that have the same queue, reason, fingerprint, owner or age."""

    __pydantic_config__ = DOCUMENTED

    key: str
    count: int
    oldest: datetime
    newest: datetime
    queues: int
    queue: str
    """One of the queues of the group."""
    error_type: str | None
    error_reason: str | None
    reason: str | None
    hours: list[int] = field(default_factory=list)
    """How many came when: before the last day, then in each of its hours, the latest last."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Messages in review, counted in the store and in the queue. They can differ legitimately: `check` says why."""

    __pydantic_config__ = DOCUMENTED

    audit: int
    """In review according to the audit."""
    queue: int | None
    """Ready in the queue now; null if the broker does not answer, or if the token is limited to some queues."""
    fits: int
    """Of those in the store, how many match the filter."""


@dataclass(frozen=True, slots=True)
class Edit:
    """How a message was changed when it was redriven. The original is stored."""

    __pydantic_config__ = DOCUMENTED

    id: str
    round: int
    job_id: str
    at: datetime
    actor: str
    changes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EditedMessage(Edit):
    """An edit, with the message as it was before."""

    __pydantic_config__ = DOCUMENTED

    body: Base64
    """The payload before the edit, in base64."""
    properties: dict[str, Any]
    """As plain values; `headers` is one of them."""


@dataclass(frozen=True, slots=True)
class ReviewDetail(ReviewItem):
    """One message in review with its history, without its payload."""

    __pydantic_config__ = DOCUMENTED

    exchange: str
    routing_key: str
    job_id: str | None
    """The job that is processing the message."""
    steps: tuple[Step, ...]
    """Its history."""
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Original:
    """A message as it was before an edit."""

    edit_id: str
    body: Base64
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReviewPayload:
    """The message itself: from the store, or from the queue if the store did not keep it."""

    __pydantic_config__ = DOCUMENTED

    body: Base64
    """In base64."""
    properties: dict[str, Any]
    """As plain values; `headers` is one of them."""
    wire_properties: Base64
    """As AMQP encodes them, in base64."""
    originals: tuple[Original, ...] = ()
    """The message as it was before each edit."""


async def summary(context: OperatorContext, chosen: Filter) -> Summary:
    counted = await context.store.rows("review_count", **Filter(scope=chosen.scope).parameters())
    fits = int(counted[0][0]) if chosen.is_empty else await count(context, chosen)
    return Summary(int(counted[0][0]), await _depth(context) if chosen.scope is None else None, fits)


async def _depth(context: OperatorContext) -> int | None:
    try:
        return await context.binder.depth(context.names.review_queue)
    except BrokerError:
        return None


async def count(context: OperatorContext, chosen: Filter) -> int:
    chosen = await completed(context, chosen)
    return int((await context.store.rows("review_count", **chosen.parameters()))[0][0])


async def completed(context: OperatorContext, chosen: Filter) -> Filter:
    """The filter with a fingerprint prefix replaced by the whole fingerprint."""
    return replace(chosen, fingerprint=await whole_fingerprint(context.store, chosen.fingerprint))


async def page(
    context: OperatorContext, chosen: Filter, *, limit: int = 50, cursor: str | None = None
) -> Page[ReviewItem]:
    """Items, oldest first."""
    if not 1 <= limit <= MOST:
        raise SettingsError(f"A page has from 1 to {MOST:,} items, not {limit:,}: use the cursor for more.")
    chosen = await completed(context, chosen)
    at, last = read_cursor(cursor, "since") if cursor else (None, None)
    rows = await context.store.rows("review_page", **chosen.parameters(), cursor_at=at, cursor_id=last, limit=limit + 1)
    items = [ReviewItem(*row) for row in rows[:limit]]
    more = len(rows) > limit
    return Page(items, write_cursor("since", items[-1].since, items[-1].retry_id) if more else None)


async def groups(context: OperatorContext, by: By, chosen: Filter, *, limit: int = 50) -> list[Group]:
    """Groups, largest first."""
    if by not in BYS:
        raise SettingsError(f"Messages cannot be grouped by {by!r}: use one of {', '.join(BYS)}.")
    chosen = await completed(context, chosen)
    return [Group(*row) for row in await context.store.rows("review_groups", **chosen.parameters(), by=by, limit=limit)]


async def resolve(context: OperatorContext, called: Sequence[str]) -> tuple[str, ...]:
    """The retry ids of messages in review, each given by its retry id, a prefix of that, or its message id."""
    return tuple([await _resolve(context, one) for one in called])


async def _resolve(context: OperatorContext, called: str) -> str:
    name = await whole_retry_id(context.store, called.replace("\x00", ""))
    rows = await context.store.rows("review_ids", called=name, id=as_uuid(name))
    inside = [row for row in rows if row[3] == "in_review"]
    if not rows:
        raise NotFoundError(
            f"Nothing is known of {called!r}: the audit has no such message id or retry id. If the message is in "
            f"the queue nevertheless, `tarry review check` reports it. {RULE}"
        )
    if not inside:
        raise NotFoundError(
            f"{called!r} is not in review: it is {rows[0][3]} in round {rows[0][4]}.", Code.NOT_IN_REVIEW
        )
    if len(inside) > 1:
        ids = ", ".join(f"{row[0]} (from {row[2]!r})" for row in inside)
        raise AmbiguousIdError(
            f"{called!r} is the message id of {len(inside)} messages in review: use one of the retry ids {ids}."
        )
    return str(inside[0][0])


async def detail(context: OperatorContext, called: str) -> ReviewDetail:
    retry_id, item, stored = await _one(context, called)
    job = await context.store.one("review_job_of", id=retry_id)
    edits = await context.store.rows("review_edits_of", id=retry_id)
    return ReviewDetail(
        **asdict(item),
        exchange=stored[2],
        routing_key=stored[3],
        job_id=job[0] if job else None,
        steps=await steps_of(context.store, retry_id),
        edits=tuple(Edit(*row[:6]) for row in edits),
    )


async def edits(context: OperatorContext, called: str) -> list[EditedMessage]:
    """The edits of a retry in any state, the first one first."""
    retry_id = await retry_id_of(context.store, called)
    rows = await context.store.rows("review_edits_of", id=retry_id)
    return [EditedMessage(*(*row[:7], describe(row[7]))) for row in rows]


async def stored_payload(context: OperatorContext, called: str) -> tuple[ReviewItem, ReviewPayload | None]:
    """The item, and its payload if the store kept it."""
    retry_id, item, (body, properties, *_) = await _one(context, called)
    if body is None:
        return item, None
    edits = await context.store.rows("review_edits_of", id=retry_id)
    originals = tuple(Original(row[0], row[6], describe(row[7])) for row in edits if row[6] is not None)
    if properties is None:
        return item, ReviewPayload(body, {}, b"", originals)
    return item, ReviewPayload(body, describe(properties), properties, originals)


async def _one(context: OperatorContext, called: str) -> tuple[str, ReviewItem, Row]:
    (retry_id,) = await resolve(context, [called])
    found = await page(context, Filter(ids=(retry_id,)), limit=1)
    stored = await context.store.one("review_one", id=retry_id)
    if not found.items or stored is None:
        raise NotFoundError(f"{called!r} has just left review: see `tarry history {retry_id}`.", Code.NOT_IN_REVIEW)
    return retry_id, found.items[0], stored

"""Compares the review queue with the store, and repairs the differences.

`check` reads every message and removes none. `adopt`, `close_gone` and `remove_leftovers` repair what it found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from tarry.amqp.delivery import Delivery
from tarry.amqp.management import Management
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract.message import Acceptance
from tarry.contract.review import for_review
from tarry.core.decide import Failure
from tarry.core.json_types import DOCUMENTED
from tarry.core.states import State
from tarry.errors import BrokerError, ConflictError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.operations.review.browse import read_unlisted
from tarry.operations.review.jobs import acceptance
from tarry.operations.review.message import Key, ReviewHeaders, key_of, read_review_headers
from tarry.operations.review.queue_scan import QueueScan, ScannedMessage, Wanted
from tarry.operations.review.work import FRAME_MAX, MOST, MOST_BYTES, scan_lock
from tarry.store.claims import LARGEST_PAYLOAD, record_columns
from tarry.store.rows import Record
from tarry.tasks import in_thread
from tarry.topology.partial import NamesOnly

SLICE = 5_000
FRESH = timedelta(seconds=5)
"""A message that went to review this recently may not have been in the queue yet when the scan began."""

KINDS = {
    "no id": "without a tarry-id of its own: the broker or a person put it there",
    "not in the audit": "not in the audit: its record is not written yet (Postgres was unavailable), or was pruned",
    "left over": "left over: a job redrove or discarded it, and was interrupted before it left the queue",
    "moved on": "in another state according to the audit",
}


@dataclass(frozen=True, slots=True)
class UnknownMessage:
    """A message in the queue that the store does not have in review."""

    __pydantic_config__ = DOCUMENTED

    kind: str
    about: str
    key: Key | None
    message_id: str | None
    queue: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class QueueComparison:
    """The result of comparing the whole queue with the store."""

    __pydantic_config__ = DOCUMENTED

    seen: int
    in_audit: int
    unknown: tuple[UnknownMessage, ...]
    gone: tuple[Key, ...]
    """In review by the store, but not in the queue."""
    in_work: int
    """Messages that a job is processing."""
    elsewhere: int | None
    """Unacknowledged at other consumers, so they may come back; None if the broker does not report the number."""

    @property
    def differs(self) -> bool:
        return bool(self.unknown or self.gone)


@dataclass(slots=True)
class _Seen:
    keys: set[Key] = field(default_factory=set)
    unknown: list[tuple[Key | None, ReviewHeaders]] = field(default_factory=list)
    count: int = 0


async def check(context: OperatorContext) -> QueueComparison:
    """During the scan, other consumers find the queue empty: a few seconds for a hundred thousand messages."""
    began: datetime = (await context.store.rows("clock"))[0][0]
    held = await elsewhere(context)
    store = await _keys_in_books(context)
    seen = await _look(context, store)
    work = {(row[0], row[1]) for row in await context.store.rows("review_in_work")}
    unknown = await _strangers(context, seen.unknown)
    missing = sorted((store - seen.keys) - work)
    gone = await _still_in_review(context, missing, began)
    return QueueComparison(seen.count, len(store), unknown, tuple(gone), len(work), held)


async def _keys_in_books(context: OperatorContext) -> set[Key]:
    found: set[Key] = set()
    after = "00000000-0000-0000-0000-000000000000"
    while rows := await context.store.rows("review_all_keys", after=after, limit=SLICE):
        found.update((row[0], row[1]) for row in rows)
        after = rows[-1][0]
    return found


async def _look(context: OperatorContext, store: set[Key]) -> _Seen:
    """For messages that the store has in review, only the key is kept."""
    # A scan needs only names, so it works even if the topology files have errors.
    accept = Acceptance(context.names) if isinstance(context.files, NamesOnly) else acceptance(context)
    seen = _Seen()

    def note(delivery: Delivery) -> bool:
        key = key_of(delivery)
        seen.count += 1
        if key is not None and key in store:
            seen.keys.add(key)
        else:
            seen.unknown.append((key, _unlisted(delivery, accept) if key is None else read_review_headers(delivery)))
        return False

    await look_through(context, note)
    return seen


def _unlisted(delivery: Delivery, accept: Acceptance) -> ReviewHeaders:
    item = read_unlisted(delivery, accept)
    return ReviewHeaders(None, item.message_id, item.origin.queue, reason=item.reason)


async def look_through(context: OperatorContext, note: Wanted) -> None:
    """Scans the whole queue and requeues every message."""
    async with (
        scan_lock(context, asyncio.Event()) as _,
        QueueScan.open(context.address, context.names.review_queue, note, most=1, most_bytes=MOST_BYTES) as scan,
    ):
        look = await scan.look()
        await scan.settled()
    if not look.whole:
        raise BrokerError(
            f"{context.names.review_queue} could not be read to its end: it grows faster than it is read, or "
            f"{context.address} does not deliver. Nothing was taken; try again in a moment."
        )


async def _strangers(
    context: OperatorContext, unknown: Sequence[tuple[Key | None, ReviewHeaders]]
) -> tuple[UnknownMessage, ...]:
    keys = [key for key, _ in unknown if key is not None]
    known: dict[str, tuple[int, str]] = {}
    left_over: set[Key] = set()
    for start in range(0, len(keys), SLICE):
        some = keys[start : start + SLICE]
        ids, rounds = [one[0] for one in some], [one[1] for one in some]
        known |= {row[0]: (row[1], row[2]) for row in await context.store.rows("review_known", ids=ids)}
        left_over |= {(r[0], r[1]) for r in await context.store.rows("review_left_over", ids=ids, rounds=rounds)}
    found = (_stranger(key, headers, known, left_over) for key, headers in unknown)
    return tuple(one for one in found if one is not None)


def _stranger(
    key: Key | None, headers: ReviewHeaders, known: dict[str, tuple[int, str]], left_over: set[Key]
) -> UnknownMessage | None:
    """None if the store has it in review after all, because it arrived during the scan."""
    if key is None:
        kind, about = "no id", KINDS["no id"]
    elif key[0] not in known:
        kind, about = "not in the audit", KINDS["not in the audit"]
    elif known[key[0]] == (key[1], "in_review"):
        return None
    elif key in left_over:
        kind, about = "left over", KINDS["left over"]
    else:
        round_, state = known[key[0]]
        kind, about = "moved on", f"according to the audit it is {state} in round {round_}; this is round {key[1]}"
    return UnknownMessage(kind, about, key, headers.message_id, headers.queue, headers.reason)


async def _still_in_review(context: OperatorContext, keys: Sequence[Key], began: datetime) -> list[Key]:
    """Leaves out messages that an operator or a job has handled meanwhile, and those too recent to judge."""
    found: list[Key] = []
    for start in range(0, len(keys), SLICE):
        ids = [one[0] for one in keys[start : start + SLICE]]
        rows = await context.store.rows("review_settled_keys", ids=ids, before=began - FRESH)
        found += [(row[0], row[1]) for row in rows]
    return sorted(set(found) & set(keys))


async def elsewhere(context: OperatorContext) -> int | None:
    """Messages that are unacknowledged at other consumers. The broker's numbers are up to five seconds old."""

    def ask() -> int:
        about = Management(context.address, timeout=5).queue(context.names.review_queue) or {}
        return int(about.get("messages_unacknowledged") or 0)

    try:
        return await in_thread(ask, "management")
    except BrokerError:
        return None


async def close_gone(context: OperatorContext, found: QueueComparison, *, actor: str) -> int:
    """Marks messages that are no longer in the queue as discarded in the store, if no consumer can return them."""
    held = await _nobody_holds(context)
    if held != 0:
        raise ConflictError(
            f"{'An unknown number of' if held is None else f'{held:,}'} messages of {context.names.review_queue} are "
            "unacknowledged at other consumers and may come back: stop those consumers, then close."
        )
    again = await check(context)
    sure = sorted(set(found.gone) & set(again.gone))
    closed = 0
    for start in range(0, len(sure), SLICE):
        some = sure[start : start + SLICE]
        rows = await context.store.rows(
            "review_close_gone",
            ids=[one[0] for one in some],
            rounds=[one[1] for one in some],
            actor=actor,
            why="taken from the review queue by another consumer",
        )
        closed += len(rows)
    return closed


async def _nobody_holds(context: OperatorContext, patience: int = 12) -> int | None:
    """Waits, because the broker's numbers may still include our own scan."""
    held = await elsewhere(context)
    for _ in range(patience):
        if not held:
            break
        await asyncio.sleep(1)
        held = await elsewhere(context)
    return held


BATCH = 200


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many differences were repaired."""

    adopted: int = 0
    closed: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """A comparison of queue and store; if repairs were requested, their result and the comparison after them."""

    __pydantic_config__ = DOCUMENTED

    found: QueueComparison
    repaired: Repaired | None
    """null if no repair was requested."""
    now: QueueComparison
    """The comparison after the repairs; the same as `found` without any."""


async def check_and_repair(
    context: OperatorContext, *, actor: str, adopting: bool = False, closing: bool = False, removing: bool = False
) -> Checked:
    found = await check(context)
    if not (adopting or closing or removing):
        return Checked(found, None, found)
    wanted = {"adopt": adopting, "close": closing, "remove": removing}
    async with recorded(context.store, kind="review.repair", target="review", actor=actor, detail=wanted) as action:
        repaired = Repaired(
            await adopt(context, found, actor=actor) if adopting else 0,
            await close_gone(context, found, actor=actor) if closing and found.gone else 0,
            await remove_leftovers(context, found) if removing else 0,
        )
        action.outcome = asdict(repaired)
    return Checked(found, repaired, await check(context))


async def adopt(context: OperatorContext, found: QueueComparison, *, actor: str) -> int:
    """Records messages that the store does not know.

    A message with an id is only recorded. A message without one is published to review again with a new id, and the
    original is acknowledged. A crash between the two leaves it in the queue twice, with the id and without.
    """
    lacking = {one.key for one in found.unknown if one.kind == "not in the audit" and one.key is not None}
    nameless = any(one.kind == "no id" for one in found.unknown)
    adopted = 0
    while True:
        async with QueueScan.open(
            context.address,
            context.names.review_queue,
            partial(_is_wanted, frozenset(lacking), nameless),
            most=MOST,
            most_bytes=MOST_BYTES,
        ) as scan:
            kept, whole = await _scan(context, scan)
            for start in range(0, len(kept), BATCH):
                adopted += await _batch(context, scan, kept[start : start + BATCH], actor)
            await scan.settled()
        lacking -= {key for held in kept if (key := key_of(held.delivery)) is not None}
        if whole:
            return adopted


def _is_wanted(lacking: frozenset[Key], nameless: bool, delivery: Delivery) -> bool:  # noqa: FBT001 - for partial
    key = key_of(delivery)
    return nameless if key is None else key in lacking


async def _scan(context: OperatorContext, scan: QueueScan) -> tuple[list[ScannedMessage], bool]:
    async with scan_lock(context, asyncio.Event()):
        look = await scan.look()
        await scan.settled()
    return look.kept, look.whole


async def _batch(context: OperatorContext, scan: QueueScan, kept: Sequence[ScannedMessage], actor: str) -> int:
    """Writes to the store first: `check` finds a row without a message, and a message without a row is the defect."""
    by_id = [(held, read_review_headers(held.delivery)) for held in kept]
    known = [(held, headers) for held, headers in by_id if headers.key is not None]
    named = [(held, *_named(context, held.delivery)) for held, headers in by_id if headers.key is None]
    records = [_record(context, held.delivery, headers) for held, headers in known]
    records += [_record(context, _delivery(sent), headers) for _, sent, headers in named]
    await _write(context, records, actor)
    if named:
        scan.check()
        outcomes = await context.publish([sent for _, sent, _ in named])
        scan.ack(
            held for (held, _, _), outcome in zip(named, outcomes, strict=True) if outcome is PublishOutcome.CONFIRMED
        )
        if set(outcomes) != {PublishOutcome.CONFIRMED}:
            raise BrokerError(
                "The broker did not accept all of them back into review: see its log, then run this again."
            )
    scan.put_back(held for held, _ in known)
    return len(records)


def _named(context: OperatorContext, delivery: Delivery) -> tuple[Message, ReviewHeaders]:
    """The same message with an id and the review reason."""
    item = read_unlisted(delivery, acceptance(context))
    key = delivery.routing_key if isinstance(delivery.routing_key, str) else ""
    properties = for_review(item, item.reason, 0, FRAME_MAX)
    message = Message(context.names.review, key, properties, delivery.body, f"{item.retry_id}:0")
    return message, replace(read_review_headers(_delivery(message)), message_id=item.message_id)


def _delivery(message: Message) -> Delivery:
    return Delivery(message.body, message.properties, message.exchange, message.routing_key)


def _record(context: OperatorContext, delivery: Delivery, headers: ReviewHeaders) -> Record:
    retry_id, round_ = headers.key or ("", 0)
    policy = context.topology.rules.policy_for(Failure(headers.queue)) if headers.queue else None
    keep = (policy is None or policy.keep_payload) and len(delivery.body) <= LARGEST_PAYLOAD
    return Record(
        retry_id=retry_id,
        round=round_,
        state=State.IN_REVIEW,
        queue=_storable(headers.queue) or "",
        reason=_storable(headers.reason),
        exchange=_storable(headers.exchange) or "",
        routing_key=_storable(headers.routing_key) or "",
        message_id=headers.message_id,
        retry_count=headers.retry_count,
        policy=policy.name if policy else None,
        error_type=_storable(headers.error_type),
        error_reason=_storable(headers.error_reason),
        since_ms=headers.since_ms,
        owner=headers.owner,
        job_type=_storable(headers.job_type),
        priority=_storable(headers.priority),
        body=delivery.body if keep else None,
        properties=b"".join(delivery.properties.encode()) if keep else None,
    )


async def _write(context: OperatorContext, records: Sequence[Record], actor: str) -> None:
    if records:
        await context.store.rows("record", **record_columns(records, [one.body for one in records]), actor=actor)


def _storable(text: str | None) -> str | None:
    """Replaces NUL, which Postgres text cannot store."""
    return text.replace("\x00", "\\x00") if text else text


async def remove_leftovers(context: OperatorContext, found: QueueComparison) -> int:
    """Removes only messages that a job has redriven or discarded in this same round."""
    left = {one.key for one in found.unknown if one.kind == "left over" and one.key is not None}
    if not left:
        return 0
    async with QueueScan.open(
        context.address,
        context.names.review_queue,
        lambda one: key_of(one) in left,
        most=10 * MOST,
        most_bytes=4 * MOST_BYTES,
    ) as scan:
        kept, _ = await _scan(context, scan)
        scan.ack(kept)
        await scan.settled()
    return len(kept)

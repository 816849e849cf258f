"""Stuck attempts: a consumer has reported that it started, and no outcome followed. Lists them, and recovers them.

A recovery sends the stored message again, as the next round or to review. The consumer that hangs may still finish, so
this may be a second delivery. It happens once for each attempt, with any number of processes: the new round is stored
before the message is published, in one statement that is unique by retry and round. If the process stops in between,
the service publishes what was stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, pick
from tarry.amqp.management import Management
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.audit.recover import CannotRebuildError, StoredMessage, next_round
from tarry.contract import headers as h
from tarry.contract.message import Origin, Request
from tarry.contract.retry_headers import priority_of, read_retry_headers
from tarry.contract.review import for_review
from tarry.core.decide import Failure
from tarry.core.id_prefix import RULE, as_uuid
from tarry.core.json_types import DOCUMENTED
from tarry.errors import BrokerError, Code, ConflictError, ControlError, NotFoundError, SettingsError, WrongStateError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import matching
from tarry.operations.intake import read_intake
from tarry.operations.lookup import whole_retry_id
from tarry.operations.pause import is_paused
from tarry.router.pipeline import FRAME_MAX
from tarry.store.database import AdvisoryLock
from tarry.tasks import in_thread, now_and_then

log = structlog.get_logger()

SentTo = Literal["queue", "review"]

T = TypeVar("T")

Attempts = frozenset[tuple[str, int, datetime]]
"""Retry id, round, and when the start was stored."""

BACKLOG = 1_000
"""More messages than this in the request queue or the tap: outcomes may not be stored yet."""

MOST = 10_000
"""The most stuck attempts that are read at a time, the oldest first."""

CONSUMER_TIMEOUT = timedelta(minutes=30)
"""RabbitMQ's default, which the management API does not show. It applies where a queue has no timeout of its own; only
quorum queues can have one."""

REDELIVERY = timedelta(minutes=3)
"""How long after its consumer timeout a hung message may take to start again elsewhere: the broker looks once a minute,
and the start has to be reported."""

LEFT_FOR = timedelta(seconds=30)
"""The age at which an unfinished recovery is resumed: longer than any caller waits."""


@dataclass(frozen=True, slots=True)
class StuckAttempt:
    """An attempt that has been running for longer than its limit."""

    __pydantic_config__ = DOCUMENTED

    retry_id: str
    message_id: str | None
    queue: str
    round: int
    retry_count: int
    """Retries used, including this one: attempt number `retry_count` + 1."""
    max_retries: int | None
    policy: str | None
    started: datetime
    """When it started, by the clock of its consumer."""
    since: datetime
    """When the audit was told, by the clock of Postgres. The limit counts from here."""
    consumer: str | None
    """The consumer, as it calls itself: by default its host and process id."""
    kept: bool
    """Whether its payload was kept, so that it can be recovered."""
    recovered_from: datetime
    """When it can be recovered: past the limit, and past the consumer timeout of its queue."""


@dataclass(frozen=True, slots=True)
class RecoveredAttempt:
    """A stuck attempt that was recovered."""

    __pydantic_config__ = DOCUMENTED

    retry_id: str
    queue: str
    round: int
    """The round of the stuck attempt."""
    sent_to: SentTo
    confirmed: bool
    """False if the broker has not confirmed the message yet: the service publishes it."""
    action_id: str


@dataclass(frozen=True, slots=True)
class StuckRecovery:
    """The result of a recovery."""

    __pydantic_config__ = DOCUMENTED

    recovered: list[RecoveredAttempt] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """Attempts that were not recovered, by retry id, each with the reason."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A row of the query."""

    retry_id: str
    message_id: str | None
    queue: str
    round: int
    retry_count: int
    max_retries: int | None
    policy: str | None
    started: datetime
    since: datetime
    consumer: str | None
    kept: bool
    limit: timedelta


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which stuck attempts to recover, and how."""

    ids: Sequence[str] = ()
    """Retry ids or their prefixes."""
    queue: str | None = None
    """A queue or a glob."""
    everything: bool = False
    to_review: bool = False
    at_once: bool = False
    """Do not wait until the consumer timeout of the queue has passed."""
    reason: str | None = None

    def check(self) -> None:
        if sum((bool(self.ids), self.queue is not None, self.everything)) != 1:
            raise SettingsError("Say which: retry ids, a queue (--queue), or all of them (--all).")


async def list_stuck(context: OperatorContext, queue: str | None = None, *, limit: int = MOST) -> list[StuckAttempt]:
    """The oldest first."""
    found = _chosen_by_queue(await _find(context), queue)[:limit]
    timeouts = await _consumer_timeouts(context, {one.queue for one in found})
    return [_attempt(one, timeouts) for one in found]


async def recover(context: OperatorContext, wanted: Wanted, *, actor: str) -> StuckRecovery:
    """Recovers the chosen attempts. Raises if an id is not that of a stuck attempt, and if only one is named and it
    cannot be recovered; other problems are in the answer.
    """
    wanted.check()
    found = await _find(context)
    chosen = await _chosen_by_id(context, found, wanted.ids) if wanted.ids else _chosen_by_queue(found, wanted.queue)
    timeouts = {} if wanted.at_once else await _consumer_timeouts(context, {one.queue for one in chosen})
    answer = StuckRecovery()
    for one in chosen:
        try:
            if not wanted.at_once:
                check_time(_attempt(one, timeouts))
            to: SentTo = "review" if wanted.to_review else "queue"
            answer.recovered.append(await _recover(context, one, to, actor=actor, reason=wanted.reason))
        except ControlError as error:
            if len(wanted.ids) == 1:
                raise
            answer.problems[one.retry_id] = str(error)
    return answer


async def find_one(context: OperatorContext, called: str) -> StuckAttempt | None:
    """The stuck attempt at the retry with this id, or at the only stuck retry of the message with this id."""
    found = [one for one in await _find(context) if called in (one.retry_id, one.message_id)]
    if len(found) != 1:
        return None
    return _attempt(found[0], await _consumer_timeouts(context, {found[0].queue}))


async def run(context: OperatorContext, stop: asyncio.Event, *, every: float, recover: bool = True) -> None:
    """Recovers stuck attempts until `stop` is set; without `recover`, only finishes what operators have begun.

    An attempt is recovered when two passes in a row have found it: after an outage, its outcome may not be stored yet.
    """
    found_before: Attempts = frozenset()

    async def look() -> None:
        nonlocal found_before
        known, found_before = found_before, frozenset()
        if recover:
            await recover_all(context, known)
            found_before = frozenset(map(_key, await _find(context)))
        else:
            await _alone(context, _resume)

    await now_and_then("stuck recovery", look, stop, every)


async def recover_all(context: OperatorContext, known: Attempts | None = None) -> StuckRecovery:
    """One pass of the service; does nothing if another process has the lock. With `known`, only those attempts."""

    async def recover(context: OperatorContext) -> StuckRecovery:
        await _resume(context)
        if await is_paused(context, "stuck-recovery") or await _outcomes_wait(context):
            return StuckRecovery()
        return await _recover_due(context, known)

    return await _alone(context, recover) or StuckRecovery()


async def _alone(context: OperatorContext, work: Callable[[OperatorContext], Awaitable[T]]) -> T | None:
    """Works while no other process has the lock; otherwise None."""
    async with context.store.lock(AdvisoryLock.STUCK_RECOVERY) as lock:
        return None if lock is None else await work(context)


async def _outcomes_wait(context: OperatorContext) -> bool:
    """Whether failures or reports may be on the broker that are not stored yet: then an attempt only looks stuck."""
    if (await read_intake(context)).paused:
        return True
    names = context.names
    return any([await context.binder.depth(queue) > BACKLOG for queue in (names.scheduled, names.audit)])


def _key(one: _Found) -> tuple[str, int, datetime]:
    return one.retry_id, one.round, one.since


async def _recover_due(context: OperatorContext, known: Attempts | None) -> StuckRecovery:
    """A message that has used all its retries, or is past its deadline, goes to review; all others are retried."""
    found = [one for one in await _find(context) if known is None or _key(one) in known]
    timeouts = await _consumer_timeouts(context, {one.queue for one in found})
    answer, now = StuckRecovery(), datetime.now(UTC)
    for one in found:
        if _recovered_from(one, timeouts) > now:
            continue
        try:
            to: SentTo = "review" if await _is_last(context, one) else "queue"
            answer.recovered.append(await _recover(context, one, to, actor=context.actor, automatic=True))
            log.warning(
                "stuck attempt recovered",
                retry_id=one.retry_id,
                queue=one.queue,
                round=one.round,
                to=to,
                consumer=one.consumer,
                started=one.started.isoformat(),
            )
        except ControlError as error:
            answer.problems[one.retry_id] = str(error)
    if answer.problems:
        example = next(iter(answer.problems.values()))
        log.warning("stuck attempts not recovered", number=len(answer.problems), example=example)
    return answer


async def _find(context: OperatorContext) -> list[_Found]:
    limits = context.stuck_limits().parameters()
    return [_Found(*row) for row in await context.store.rows("stuck_attempts", **limits, limit=MOST)]


def _attempt(one: _Found, timeouts: Mapping[str, timedelta]) -> StuckAttempt:
    columns = {name: value for name, value in asdict(one).items() if name != "limit"}
    return StuckAttempt(**columns, recovered_from=_recovered_from(one, timeouts))


def _recovered_from(one: _Found, timeouts: Mapping[str, timedelta]) -> datetime:
    """The broker may deliver the hung message again when its consumer timeout has passed; that is waited for."""
    return one.since + max(one.limit, timeouts.get(one.queue, CONSUMER_TIMEOUT) + REDELIVERY)


async def _consumer_timeouts(context: OperatorContext, queues: Collection[str]) -> dict[str, timedelta]:
    """The timeouts that queues have by an argument or a policy; others have the broker's default.

    So do all of them without the management API: then a message may be delivered twice, but it is not left hanging.
    """
    if not queues:
        return {}
    try:
        return await in_thread(lambda: _read_timeouts(Management(context.address), sorted(queues)), "consumer timeouts")
    except BrokerError:
        return {}


def _read_timeouts(management: Management, queues: Sequence[str]) -> dict[str, timedelta]:
    found: dict[str, timedelta] = {}
    for name in queues:
        about = management.queue(name) or {}
        own = (about.get("arguments") or {}).get("x-consumer-timeout")
        policy = (about.get("effective_policy_definition") or {}).get("consumer-timeout")
        given = [value for value in (own, policy) if isinstance(value, int)]
        if given and about.get("type") == "quorum":
            found[name] = timedelta(milliseconds=max(given))
    return found


def _chosen_by_queue(found: Sequence[_Found], queue: str | None) -> list[_Found]:
    if queue is None:
        return list(found)
    queues = set(matching(queue, {one.queue for one in found}))
    return [one for one in found if one.queue in queues]


async def _chosen_by_id(context: OperatorContext, found: Sequence[_Found], ids: Sequence[str]) -> list[_Found]:
    by_id = {one.retry_id: one for one in found}
    whole = [await whole_retry_id(context.store, called) for called in dict.fromkeys(ids)]
    for called in whole:
        if called not in by_id:
            raise await _not_stuck(context, called)
    return [by_id[one] for one in dict.fromkeys(whole)]


async def _not_stuck(context: OperatorContext, called: str) -> ControlError:
    rows = await context.store.rows("retries_to_divert", id=as_uuid(called), called=None)
    if not rows:
        return NotFoundError(
            f"No retry has the id {called!r}: `tarry stuck` lists the stuck ones. {RULE} Nothing was done."
        )
    state, round_ = rows[0][3], rows[0][4]
    return WrongStateError(
        f"Retry {called} (queue {rows[0][2]}, round {round_}) is not stuck: it is {state}, and no attempt at it has "
        "been running for longer than its limit. `tarry stuck` lists those. Nothing was done."
    )


def check_time(one: StuckAttempt) -> None:
    """Raises if the broker may still deliver the hung message again by itself."""
    if one.recovered_from > datetime.now(UTC):
        raise ConflictError(
            f"Retry {one.retry_id} (queue {one.queue}): the broker may deliver the hung message again by itself, when "
            f"the consumer timeout of its queue has passed. It can be recovered from "
            f"{one.recovered_from:%Y-%m-%d %H:%M:%S} UTC, or now with `tarry stuck recover --now`.",
            Code.BEING_PROCESSED,
        )


async def _recover(
    context: OperatorContext,
    one: _Found,
    to: SentTo,
    *,
    actor: str,
    reason: str | None = None,
    automatic: bool = False,
) -> RecoveredAttempt:
    """Stores what is done, then publishes. A failure to publish is not an error: the service tries again."""
    detail = {
        "reason": reason,
        "queue": one.queue,
        "round": one.round,
        "to": to,
        "consumer": one.consumer,
        "started": one.started.isoformat(),
        "possible_second_delivery": True,
    }
    async with recorded(context.store, kind="recover_stuck", target=one.retry_id, actor=actor, detail=detail) as action:
        message = await _begin(context, one, to, actor, reason, automatic=automatic)
        confirmed = await _publish(context, one.retry_id, one.round, message)
        answer = RecoveredAttempt(one.retry_id, one.queue, one.round, to, confirmed, action.id)
        action.outcome = asdict(answer)
    return answer


async def _begin(
    context: OperatorContext, one: _Found, to: SentTo, actor: str, reason: str | None, *, automatic: bool
) -> Message:
    row = await context.store.one("stuck_stored", id=one.retry_id, round=one.round, seen_at=one.since)
    if row is None:
        raise _not_kept(one) if not one.kept else _changed(one)
    stored, about = StoredMessage(*row[:7]), row[7:]
    why = _why(one, reason)
    given = {"id": one.retry_id, "round": one.round, "seen_at": one.since, "actor": actor}
    try:
        if to == "review":
            message = _for_review(context, one, stored, about, why)
            changed = await context.store.change(
                "review_stuck", **given, reason=why, properties=message.encoded_properties()
            )
        else:
            now_ms = time.time_ns() // 1_000_000
            message = next_round(stored, context.names, now_ms, one.retry_count + 1, automatic=automatic)
            changed = await context.store.change(
                "recover_stuck",
                **given,
                reason=why,
                now_ms=now_ms,
                by_person=not automatic,
                tier=context.names.relay,
                properties=message.encoded_properties(),
            )
    except CannotRebuildError as error:
        raise ConflictError(f"Retry {one.retry_id} (queue {one.queue}) cannot be recovered: {error}.") from error
    if not changed:
        raise _changed(one)
    return message


async def _publish(context: OperatorContext, retry_id: str, round_: int, message: Message) -> bool:
    try:
        confirmed = await context.publish([message]) == [PublishOutcome.CONFIRMED]
    except BrokerError:
        return False
    if confirmed:
        await context.store.change("stuck_published", id=retry_id, round=round_)
    return confirmed


async def _resume(context: OperatorContext) -> None:
    """Publishes what was stored and never confirmed. It may be there twice then, but it is not lost."""
    for retry_id, round_, sent_to, key, body, properties in await context.store.rows(
        "unpublished_recoveries", left_for=LEFT_FOR
    ):
        if body is None or properties is None:
            await context.store.change("stuck_published", id=retry_id, round=round_)
            continue
        exchange = context.names.review if sent_to == "review" else context.names.relay
        message = Message(exchange, key, Properties.decode(properties), body, f"{retry_id}:{round_ + 1}")
        if not await _publish(context, retry_id, round_, message):
            log.warning("recovered attempt not published yet", retry_id=retry_id, round=round_)


async def _is_last(context: OperatorContext, one: _Found) -> bool:
    """Whether all retries are used, or the deadline has passed: as for a failure, a person decides."""
    if one.max_retries is not None and one.retry_count >= one.max_retries:
        return True
    row = await context.store.one("stuck_stored", id=one.retry_id, round=one.round, seen_at=one.since)
    deadline = _deadline_ms(bytes(row[6])) if row is not None else None
    return deadline is not None and deadline <= time.time_ns() // 1_000_000


def _deadline_ms(properties: bytes) -> int | None:
    try:
        found = pick(Properties.decode(properties).headers or b"", {_DEADLINE}).get(_DEADLINE)
    except BadTableError:
        return None
    return found.integer() if found is not None else None


def _for_review(
    context: OperatorContext, one: _Found, stored: StoredMessage, about: Sequence[object], reason: str
) -> Message:
    exchange, message_id, since_ms = about
    try:
        properties = Properties.decode(stored.properties)
        own = read_retry_headers(pick(properties.headers or b"", {h.FORM.encode(), h.OWN_PRIORITY.encode()}))
    except BadTableError as error:
        raise CannotRebuildError(f"its stored properties are damaged: {error}") from error
    request = Request(
        delivery=Delivery(stored.body, properties, str(exchange), stored.routing_key),
        form="headers",
        retry_id=one.retry_id,
        deduplicable=True,
        knows_round=True,
        message_id=None if message_id is None else str(message_id),
        origin=Origin(stored.queue, str(exchange), stored.routing_key),
        failure=Failure(stored.queue, one.retry_count, one.round, since_ms if isinstance(since_ms, int) else None),
        body=stored.body,
        priority=priority_of(own, properties.priority),
        speaks_contract=own.contract,
    )
    round_ = one.round + 1
    made = for_review(request, reason, round_, FRAME_MAX)
    return Message(context.names.review, stored.routing_key, made, stored.body, f"{one.retry_id}:{round_}")


def _why(one: _Found, reason: str | None) -> str:
    who = f" by {one.consumer}" if one.consumer else ""
    told = f": {reason}" if reason else ""
    return f"stuck: started {one.started.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC{who}, no outcome since{told}"


def _not_kept(one: _Found) -> ConflictError:
    who = f" {one.consumer}" if one.consumer else ""
    return ConflictError(
        f"Retry {one.retry_id} (queue {one.queue}): its payload was not kept (keep_payload = false, or it was too "
        f"large), so only the hung consumer{who} has the message. Restart it: the broker then delivers it again."
    )


def _changed(one: _Found) -> ConflictError:
    return ConflictError(
        f"Retry {one.retry_id} (queue {one.queue}, round {one.round}) has just ended, started again or been recovered: "
        f"see `tarry history {one.retry_id}`."
    )


_DEADLINE = h.DEADLINE.encode()

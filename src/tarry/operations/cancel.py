"""Cancel: finds the waiting retry and diverts its message at a gate. A retry-now of a waiting message uses it too."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

import structlog

from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.audit.recover import CannotRebuildError, StoredMessage, next_round
from tarry.core.id_prefix import RULE, as_uuid
from tarry.core.names import Destination, holder_of_label, id_key
from tarry.core.states import State
from tarry.errors import (
    AmbiguousIdError,
    AuditUnavailableError,
    BrokerError,
    BrokerUnreachableError,
    Code,
    ConflictError,
    ControlError,
    MissingOnBrokerError,
    NotFoundError,
    WrongStateError,
)
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.operations.lookup import whole_retry_id
from tarry.operations.paused_destination import command_arguments
from tarry.topology.model import Topology

Kind = Literal["cancel", "retry_now"]

DIVERTIBLE = frozenset({State.SCHEDULED, State.HELD})
"""States in which a message waits and has yet to pass a gate."""


@dataclass(frozen=True, slots=True)
class WaitingRetry:
    """One retry, as the audit has it."""

    retry_id: str
    message_id: str | None
    queue: str
    state: str
    round: int
    due: datetime | None
    kept: bool
    """Whether its message can be rebuilt."""
    paused_by: str | None
    """The label of a pause that would hold it even if it were sent now. One of automatic retries would not."""
    is_paused: bool
    under_way: str | None
    """A cancel or retry-now that was requested before and is in progress."""
    asked_by: str | None
    asked_at: datetime | None
    policy: str | None


async def find(context: OperatorContext, called: str, kind: Kind, states: Collection[str] = DIVERTIBLE) -> WaitingRetry:
    """The retry with this id, or the one retry of the message with this id that is in one of these states.

    Raises a ControlError with the reason if there is none, or if the action is not possible.
    """
    rows = await context.store.rows("retries_to_divert", id=as_uuid(called), called=called)
    found = [WaitingRetry(*row) for row in rows]
    if not found:
        raise NotFoundError(
            f"Nothing is known of {called!r}: the audit has no such retry id or message id. "
            f"See `tarry status` for what waits, and the header `tarry-id` of a message for its retry id. {RULE}"
        )
    suitable = [one for one in found if one.state in states]
    if len(suitable) > 1:
        ids = ", ".join(f"{one.retry_id} (in {one.queue})" for one in suitable)
        raise AmbiguousIdError(f"Message {called!r} waits for {len(suitable)} queues: name one of {ids}.")
    one = suitable[0] if suitable else found[-1]
    problem = _problem(one, kind, states)
    if problem is not None:
        raise problem
    return one


def _problem(one: WaitingRetry, kind: Kind, states: Collection[str]) -> ControlError | None:
    """The reason why the action is not possible; None if it is."""
    who = f"Retry {one.retry_id} (queue {one.queue}, round {one.round})"
    if one.state == State.CLAIMED:
        return ConflictError(f"{who} is being routed: try again in a moment.")
    if one.state == State.RETURNED:
        return ConflictError(f"{who} has already returned to its queue.", Code.ALREADY_RETURNED)
    if one.state not in states:
        code = Code.CANCELLED if one.state == State.CANCELLED else Code.INVALID_STATE
        return WrongStateError(f"{who} is {one.state}{_HINTS.get(one.state, '')}: nothing is waiting.", code)
    if one.under_way is not None:
        what = one.under_way.replace("_", "-")
        return ConflictError(
            f"{who}: a {what} was requested by {one.asked_by} at {one.asked_at:%Y-%m-%d %H:%M:%S %Z}.",
            Code.ALREADY_REQUESTED,
        )
    return not_now(one, who) if kind == "retry_now" else None


def not_now(one: WaitingRetry, who: str) -> ConflictError | None:
    """Why it cannot be sent now although its state allows it; None if it can."""
    if one.paused_by is not None:
        holder = holder_of_label(one.paused_by)
        what = "destination" if isinstance(holder, Destination) else holder.kind.replace("-", " ")
        return ConflictError(
            f"{who}: its {what} is paused. Resume it with `tarry resume {command_arguments(holder)}` first.",
            Code.DESTINATION_PAUSED,
        )
    if one.state in DIVERTIBLE and not one.kept:
        return ConflictError(
            f"{who}: its payload was not kept, so it cannot be sent before it is due.", Code.PAYLOAD_UNAVAILABLE
        )
    return None


_HINTS: dict[str, str] = {
    State.IN_REVIEW: " (see `tarry review`)",
    State.SKIPPED: " (a rule of its policy ended it: see `tarry history`)",
    State.UNROUTABLE: " (its destination does not exist; the service redrives it when it does)",
}


async def check_copy(context: OperatorContext, retry_id: str, round_: int) -> None:
    """Raises ConflictError if the stored message cannot be rebuilt.

    Called before a retry-now is recorded: the original must not be diverted if it cannot be sent now.
    """
    row = await context.store.one("stored", id=retry_id, round=round_)
    if row is not None:
        _next_round(context, StoredMessage(*row), 0)


async def send_copy(context: OperatorContext, diversion: str) -> bool:
    """Sends the message now; True if the broker has confirmed it.

    The new round is stored first: the tap may see the message the moment it is sent. If called again after a crash, it
    sends a round that has begun and was not seen to return: an unconfirmed message may be sent twice, but is not lost.
    """
    row = await context.store.one("to_copy", id=diversion)
    if row is None:
        return await _confirmed(context, diversion)
    message = await _begun(context, diversion, StoredMessage(*row))
    outcomes = await context.publish([message])
    return outcomes == [PublishOutcome.CONFIRMED] and await _confirmed(context, diversion)


async def _confirmed(context: OperatorContext, diversion: str) -> bool:
    return bool(await context.store.change("copied", id=diversion))


async def _begun(context: OperatorContext, diversion: str, stored: StoredMessage) -> Message:
    """Stores the new round and returns its message; if the round was stored before, returns the stored message."""
    now_ms = time.time_ns() // 1_000_000
    message = _next_round(context, stored, now_ms)
    begun = await context.store.change(
        "begin_copy",
        id=diversion,
        now_ms=now_ms,
        tier=context.names.relay,
        properties=message.encoded_properties(),
    )
    if begun:
        return message
    return Message(
        context.names.relay,
        stored.routing_key,
        Properties.decode(stored.properties),
        stored.body,
        f"{stored.retry_id}:{stored.round}",
    )


def _next_round(context: OperatorContext, stored: StoredMessage, now_ms: int) -> Message:
    try:
        return next_round(stored, context.names, now_ms)
    except CannotRebuildError as error:
        raise ConflictError(
            f"Retry {stored.retry_id} cannot be sent before it is due: {error}.", Code.PAYLOAD_UNAVAILABLE
        ) from error


log = structlog.get_logger()

Verdict = Literal["cancelled", "retried", "returned", "pending"]

Before = Callable[[], Awaitable[None]]
"""Called before the message of a retry-now is published."""

OLD_BROKERS = (3, 11)
"""Brokers before this version are old: their direct exchanges are slow to find a key among many bindings."""


@dataclass(frozen=True, slots=True)
class Diversion:
    """A cancel or retry-now in progress."""

    id: str
    retry_id: str
    round: int
    kind: Kind
    on_release: bool
    due: datetime
    tier: str | None = None
    """The queue that its message waits in first; None if the retry is in another round by now."""

    @property
    def key(self) -> str:
        return id_key(self.retry_id, self.round)


class Retryable(Protocol):
    """What the credit check is told about a retry."""

    @property
    def retry_id(self) -> str: ...
    @property
    def message_id(self) -> str | None: ...
    @property
    def queue(self) -> str: ...
    @property
    def policy(self) -> str | None: ...


async def ask_credits(context: OperatorContext, retry: Retryable, state: str, actor: str, reason: str | None) -> None:
    """Asks the credit check before a retry-now, if there is one."""
    if context.check is not None:
        await context.check.ask(
            {
                "retry_id": retry.retry_id,
                "message_id": retry.message_id,
                "queue": retry.queue,
                "policy": retry.policy,
                "state": state,
                "actor": actor,
                "reason": reason,
            }
        )


async def ask(context: OperatorContext, waiting: WaitingRetry, kind: Kind, actor: str, reason: str | None) -> Diversion:
    """Stores the request, unless the broker is unreachable, or is an old one with too many in progress."""
    await _refuse_too_many(context)
    if kind == "retry_now":
        await check_copy(context, waiting.retry_id, waiting.round)
    made = str(uuid.uuid4())
    row = await context.store.one(
        "ask_diversion",
        id=made,
        retry_id=waiting.retry_id,
        round=waiting.round,
        kind=kind,
        actor=actor,
        reason=reason,
        on_release=waiting.is_paused,
    )
    if row is None:
        await find(context, waiting.retry_id, kind)  # raises the reason
        raise just_changed(waiting.retry_id)
    due, tier = row
    return Diversion(made, waiting.retry_id, waiting.round, kind, waiting.is_paused, due, tier)


def just_changed(retry_id: str) -> ConflictError:
    return ConflictError(f"Retry {retry_id} has just changed state: see `tarry history {retry_id}`.")


async def _nothing() -> None: ...


async def carry_out(context: OperatorContext, diversion: Diversion, before_sending: Before = _nothing) -> Verdict:
    """Binds, finds out whether that was in time, and applies the outcome. Can be repeated at any point.

    The request is stored by now: if the broker or Postgres is unavailable, the service resumes it later.
    """
    try:
        in_time = await bind(context, diversion)
        outcome = "diverted" if in_time else await context.outcomes.of(diversion.id, _patience(context, diversion))
        return await decide(context, diversion, outcome, before_sending)
    except (BrokerUnreachableError, AuditUnavailableError) as error:
        log.warning("no answer yet", kind=diversion.kind, retry_id=diversion.retry_id, reason=str(error))
        return "pending"


async def bind(context: OperatorContext, diversion: Diversion) -> bool:
    """Binds; True if the binding existed before the message can have passed the gate.

    If the broker refuses, the bindings are removed and the request is dropped.
    """
    try:
        for gate in gates(context, diversion):
            await _bind_on(context, gate, diversion)
    except BrokerUnreachableError:
        raise
    except BrokerError:
        with suppress(BrokerError):
            await end(context, diversion)
        await context.store.change("decide", id=diversion.id, verdict="dropped")
        raise
    row = await context.store.one(
        "diversion_bound", id=diversion.id, here=datetime.now(UTC), margin=context.limits.margin
    )
    return bool(row and row[0])


async def _bind_on(context: OperatorContext, gate: str, diversion: Diversion) -> None:
    """An installation of an earlier version lacks the gate for rechecks until `tarry topology apply`. The gate of lanes
    exists only if there is a lane.
    """
    try:
        await context.bind(context.names.cancelled, gate, diversion.key)
    except MissingOnBrokerError:
        if gate not in (context.names.recheck_cancelled, context.names.lanes_cancelled):
            raise


async def decide(
    context: OperatorContext, diversion: Diversion, outcome: str | None, before_sending: Before = _nothing
) -> Verdict:
    """Applies the outcome that the taps have recorded."""
    if outcome is None:
        return "pending"
    if outcome == "returned":
        # Immediately: a message that finds no queue at its destination is redriven, and must not be diverted then.
        await context.store.change("decide", id=diversion.id, verdict="returned")
        with suppress(BrokerError):
            await end(context, diversion)
        return "returned"
    if diversion.kind == "retry_now":
        await before_sending()
        return "retried" if await send_copy(context, diversion.id) else "pending"
    await context.store.change("cancel", id=diversion.id)
    return "cancelled"


async def end(context: OperatorContext, diversion: Diversion) -> None:
    """Removes the bindings."""
    for gate in reversed([*gates(context, diversion)]):
        try:
            await context.unbind(context.names.cancelled, gate, diversion.key)
        except BrokerUnreachableError:
            raise
        except BrokerError as error:
            # A user without a permission for the newer gate cannot have bound it.
            newer = (context.names.recheck_cancelled, context.names.lanes_cancelled)
            if gate not in newer and not isinstance(error, MissingOnBrokerError):
                raise
    await context.store.change("unbound", id=diversion.id)


def gates(context: OperatorContext, diversion: Diversion) -> Iterator[str]:
    """A held message has passed the cancelled gate already. It leaves its held queue through one of two other gates."""
    if diversion.on_release:
        yield context.names.released_gate
        yield context.names.recheck_cancelled
    if _can_be_in_lane(context, diversion):
        yield context.names.lanes_cancelled
    yield context.names.cancelled_gate


def _can_be_in_lane(context: OperatorContext, diversion: Diversion) -> bool:
    """A message stays in the lane that it was sent to, even if no policy names the lane any more: then the tier tells.
    If there are lanes, the tier is not relied on: a router that crashed may have sent another copy to another tier.
    """
    if isinstance(context.files, Topology) and context.files.lanes:
        return True
    return diversion.tier is not None and context.names.lane_of(diversion.tier) is not None


def _patience(context: OperatorContext, diversion: Diversion) -> float:
    left = diversion.due - datetime.now(UTC)
    return max(0.0, left.total_seconds()) + context.limits.outcome_timeout.total_seconds()


async def _refuse_too_many(context: OperatorContext) -> None:
    version = await context.binder.version()
    if not version or version >= OLD_BROKERS:
        return
    row = await context.store.one("active_diversions")
    most = context.limits.most_cancels
    if row and row[0] >= most:
        raise ConflictError(
            f"{row[0]} cancels and retry-nows are under way, and RabbitMQ before 3.11 gets slow with more than {most}: "
            "wait until some of them have come due.",
            Code.TOO_MANY_IN_PROGRESS,
        )


@dataclass(frozen=True, slots=True)
class Diverted:
    """The result of a cancel."""

    retry_id: str
    message_id: str | None
    queue: str
    round: int
    """The round that waited."""
    answer: str
    """`cancelled`, or `pending`: requested, and the outcome is not known yet."""
    action_id: str


async def cancel(context: OperatorContext, called: str, *, actor: str, reason: str | None = None) -> Diverted:
    """Diverts the waiting message when it comes due, so that it does not return.

    Raises ConflictError if it has already returned or is being routed, WrongStateError if it is not waiting.
    """
    called = await whole_retry_id(context.store, called)
    async with recorded(context.store, kind="cancel", target=called, actor=actor, detail={"reason": reason}) as action:
        waiting = await find(context, called, "cancel")
        diversion = await ask(context, waiting, "cancel", actor, reason)
        verdict = await carry_out(context, diversion)
        answer = Diverted(waiting.retry_id, waiting.message_id, waiting.queue, waiting.round, verdict, action.id)
        action.outcome = asdict(answer)
    if verdict == "returned":
        raise returned(waiting)
    return answer


def returned(retry: WaitingRetry) -> ConflictError:
    return ConflictError(
        f"Retry {retry.retry_id} (queue {retry.queue}) has already returned to its queue.", Code.ALREADY_RETURNED
    )

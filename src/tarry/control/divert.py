"""Cancel and retry now: a binding on the cancelled gate takes the waiting message out of its way when it comes due.

The wish is written first, so that a crash leaves something to go on with. The answer is exact: a binding that the
broker confirmed well before the due moment was in time; nearer than that, the taps' word is waited for. `pending` is
the honest answer where there is no word: the service goes on with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import structlog

from tarry.control.copy import check_copy, send_copy
from tarry.control.desk import Desk
from tarry.control.waiting import Kind, Waiting, find
from tarry.core.names import id_key
from tarry.errors import AuditUnavailableError, BrokerError, BrokerUnreachableError, ConflictError

log = structlog.get_logger()

Verdict = Literal["cancelled", "retried", "returned", "pending"]

OLD_BROKERS = (3, 11)
"""From here on a direct exchange finds a key among many at once."""


@dataclass(frozen=True, slots=True)
class Diversion:
    """One wish under way."""

    id: str
    retry_id: str
    round: int
    kind: Kind
    on_release: bool
    due: datetime

    @property
    def key(self) -> str:
        return id_key(self.retry_id, self.round)


async def ask(desk: Desk, waiting: Waiting, kind: Kind, actor: str, reason: str | None) -> Diversion:
    """The wish in the books. Nothing is written while the broker is away, or has enough of them."""
    await _refuse_too_many(desk)
    if kind == "retry_now":
        await check_copy(desk, waiting.retry_id, waiting.round)
    made = str(uuid.uuid4())
    row = await desk.books.one(
        "ask_diversion",
        id=made,
        retry_id=waiting.retry_id,
        round=waiting.round,
        kind=kind,
        actor=actor,
        reason=reason,
        on_release=waiting.on_hold,
    )
    if row is None:
        await find(desk, waiting.retry_id, kind)  # which says why
        raise ConflictError(
            f"Retry {waiting.retry_id} has just moved on: look with `tarry history {waiting.retry_id}`."
        )
    return Diversion(made, waiting.retry_id, waiting.round, kind, waiting.on_hold, row[0])


async def carry_out(desk: Desk, diversion: Diversion) -> Verdict:
    """Bind, find out whether that was in time, and do what follows. Can be repeated at any point.

    The wish is in the books by now: with broker or Postgres gone, the service goes on with it later.
    """
    try:
        in_time = await bind(desk, diversion)
        word = "diverted" if in_time else await desk.words.of(diversion.id, _patience(desk, diversion))
        return await decide(desk, diversion, word)
    except (BrokerUnreachableError, AuditUnavailableError) as error:
        log.warning("no answer yet", kind=diversion.kind, retry_id=diversion.retry_id, reason=str(error))
        return "pending"


async def bind(desk: Desk, diversion: Diversion) -> bool:
    """Whether the binding was there before the message can have passed. A refusal of the broker undoes all of it."""
    try:
        for gate in gates(desk, diversion):
            await desk.bind(desk.names.cancelled, gate, diversion.key)
    except BrokerUnreachableError:
        raise
    except BrokerError:
        with suppress(BrokerError):
            await end(desk, diversion)
        await desk.books.change("decide", id=diversion.id, verdict="dropped")
        raise
    row = await desk.books.one("diversion_bound", id=diversion.id, here=datetime.now(UTC), margin=desk.limits.margin)
    return bool(row and row[0])


async def decide(desk: Desk, diversion: Diversion, word: str | None) -> Verdict:
    """By the taps' word."""
    if word is None:
        return "pending"
    if word == "returned":
        # At once: a message that finds no queue at its destination is sent round again, and must not be diverted then.
        await desk.books.change("decide", id=diversion.id, verdict="returned")
        with suppress(BrokerError):
            await end(desk, diversion)
        return "returned"
    if diversion.kind == "retry_now":
        return "retried" if await send_copy(desk, diversion.id) else "pending"
    await desk.books.change("cancel", id=diversion.id)
    return "cancelled"


async def end(desk: Desk, diversion: Diversion) -> None:
    """Take the binding away."""
    for gate in gates(desk, diversion):
        await desk.unbind(desk.names.cancelled, gate, diversion.key)
    await desk.books.change("unbound", id=diversion.id)


def gates(desk: Desk, diversion: Diversion) -> Iterator[str]:
    """What is held has passed the first gate, and leaves by the other."""
    if diversion.on_release:
        yield desk.names.released_gate
    yield desk.names.cancelled_gate


def _patience(desk: Desk, diversion: Diversion) -> float:
    left = diversion.due - datetime.now(UTC)
    return max(0.0, left.total_seconds()) + desk.limits.word.total_seconds()


async def _refuse_too_many(desk: Desk) -> None:
    version = await desk.binder.version()
    if not version or version >= OLD_BROKERS:
        return
    row = await desk.books.one("active_diversions")
    most = desk.limits.most_cancels
    if row and row[0] >= most:
        raise ConflictError(
            f"{row[0]} cancels and retry-nows are under way, and RabbitMQ before 3.11 gets slow with more than {most}: "
            "wait until some of them have come due."
        )

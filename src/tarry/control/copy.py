"""The copy of a retry-now: a round of its own, sent from the books straight to the destination's relay."""

from __future__ import annotations

import time

from tarry.audit.rebuild import CannotRebuildError, Stored, next_round
from tarry.broker.publisher import Message, Outcome
from tarry.contract.properties import Properties
from tarry.control.desk import Desk
from tarry.errors import ConflictError


async def check_copy(desk: Desk, retry_id: str, round_: int) -> None:
    """Whether a copy could be made, before anything is wished for: the original must not be diverted for nothing."""
    row = await desk.books.one("stored", id=retry_id, round=round_)
    if row is not None:
        _next_round(desk, Stored(*row), 0)


async def send_copy(desk: Desk, diversion: str) -> bool:
    """Whether the broker has it. The books first: the tap may see it pass the moment it is sent.

    Called again after a crash it sends what has begun and was not seen to return: in doubt twice, never not at all.
    """
    row = await desk.books.one("to_copy", id=diversion)
    if row is None:
        return await _confirmed(desk, diversion)
    message = await _begun(desk, diversion, Stored(*row))
    outcomes = await desk.publish([message])
    return outcomes == [Outcome.CONFIRMED] and await _confirmed(desk, diversion)


async def _confirmed(desk: Desk, diversion: str) -> bool:
    return bool(await desk.books.change("copied", id=diversion))


async def _begun(desk: Desk, diversion: str, stored: Stored) -> Message:
    """The message of the new round, which is in the books now; or the one that was there already."""
    now_ms = time.time_ns() // 1_000_000
    message = _next_round(desk, stored, now_ms)
    begun = await desk.books.change(
        "begin_copy",
        id=diversion,
        now_ms=now_ms,
        tier=desk.names.relay,
        properties=message.encoded_properties(),
    )
    if begun:
        return message
    return Message(
        desk.names.relay,
        stored.routing_key,
        Properties.decode(stored.properties),
        stored.body,
        f"{stored.retry_id}:{stored.round}",
    )


def _next_round(desk: Desk, stored: Stored, now_ms: int) -> Message:
    try:
        return next_round(stored, desk.names, now_ms)
    except CannotRebuildError as error:
        raise ConflictError(f"Retry {stored.retry_id} cannot be sent before it is due: {error}.") from error

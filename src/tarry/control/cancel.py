"""`cancel` and `retry_now`, as operators call them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tarry.control.actions import recorded
from tarry.control.desk import Desk
from tarry.control.divert import ask, carry_out
from tarry.control.ids import whole_retry_id
from tarry.control.waiting import Kind, find
from tarry.errors import ConflictError


@dataclass(frozen=True, slots=True)
class Diverted:
    """What an operator is told."""

    retry_id: str
    message_id: str | None
    queue: str
    round: int
    """The round that waited."""
    answer: str
    """`cancelled`, `retried`, or `pending`: asked for, and no word of it yet."""
    action_id: str


async def cancel(desk: Desk, called: str, *, actor: str, reason: str | None = None) -> Diverted:
    """The waiting message is diverted when it comes due, and does not return.

    Raises ConflictError if it has already returned or is being routed, WrongStateError if nothing of it waits.
    """
    return await _divert(desk, called, "cancel", actor, reason)


async def retry_now(desk: Desk, called: str, *, actor: str, reason: str | None = None) -> Diverted:
    """A copy is sent at once, and the waiting message is diverted when it comes due: one of the two returns.

    Raises as `cancel` does, and ConflictError if its payload was not kept or its destination is paused.
    """
    return await _divert(desk, called, "retry_now", actor, reason)


async def _divert(desk: Desk, called: str, kind: Kind, actor: str, reason: str | None) -> Diverted:
    called = await whole_retry_id(desk.books, called)
    async with recorded(desk.books, kind=kind, target=called, actor=actor, detail={"reason": reason}) as action:
        waiting = await find(desk, called, kind)
        diversion = await ask(desk, waiting, kind, actor, reason)
        verdict = await carry_out(desk, diversion)
        answer = Diverted(waiting.retry_id, waiting.message_id, waiting.queue, waiting.round, verdict, action.id)
        action.outcome = asdict(answer)
    if verdict == "returned":
        raise ConflictError(f"Retry {waiting.retry_id} (queue {waiting.queue}) has already returned to its queue.")
    return answer

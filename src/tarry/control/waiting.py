"""Finding the retry that an operator means, and whether it can be diverted at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tarry.control.desk import Desk
from tarry.core.id_prefix import RULE, as_uuid
from tarry.core.states import State
from tarry.errors import AmbiguousIdError, ConflictError, ControlError, NotFoundError, WrongStateError

Kind = Literal["cancel", "retry_now"]

DIVERTIBLE = frozenset({State.SCHEDULED, State.HELD})
"""States in which a message is on its way and a gate is before it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One retry as the books have it."""

    retry_id: str
    message_id: str | None
    queue: str
    state: str
    round: int
    due: datetime | None
    kept: bool
    """Whether its message can be rebuilt."""
    destination: str | None
    """Its hold, if it ever had one."""
    on_hold: bool
    under_way: str | None
    """A cancel or retry-now that somebody has asked for before."""
    asked_by: str | None
    asked_at: datetime | None


async def find(desk: Desk, called: str, kind: Kind) -> Waiting:
    """The one with this retry id, or the one of this message that waits; else why it cannot be."""
    rows = await desk.books.rows("retries_to_divert", id=as_uuid(called), called=called)
    found = [Waiting(*row) for row in rows]
    if not found:
        raise NotFoundError(
            f"Nothing is known of {called!r}: it is no retry id and no message id in these books. "
            f"See `tarry status` for what waits, and the header `tarry-id` of a message for its retry id. {RULE}"
        )
    divertible = [one for one in found if one.state in DIVERTIBLE]
    if len(divertible) > 1:
        ids = ", ".join(f"{one.retry_id} (in {one.queue})" for one in divertible)
        raise AmbiguousIdError(f"Message {called!r} waits for {len(divertible)} queues: name one of {ids}.")
    one = divertible[0] if divertible else found[-1]
    problem = _problem(one, kind)
    if problem is not None:
        raise problem
    return one


def _problem(one: Waiting, kind: Kind) -> ControlError | None:
    """Why it cannot be done, if it cannot."""
    who = f"Retry {one.retry_id} (queue {one.queue}, round {one.round})"
    if one.state == State.CLAIMED:
        return ConflictError(f"{who} is being routed: try again in a moment.")
    if one.state == State.RETURNED:
        return ConflictError(f"{who} has already returned to its queue.")
    if one.state not in DIVERTIBLE:
        return WrongStateError(f"{who} is {one.state}{_HINTS.get(one.state, '')}: nothing of it waits.")
    if one.under_way is not None:
        what = one.under_way.replace("_", "-")
        return ConflictError(f"{who}: a {what} was asked for by {one.asked_by} at {one.asked_at:%Y-%m-%d %H:%M:%S %Z}.")
    return _not_now(one, who) if kind == "retry_now" else None


def _not_now(one: Waiting, who: str) -> ConflictError | None:
    if one.on_hold:
        return ConflictError(
            f"{who}: its destination is paused. Resume it with `tarry resume {one.destination}` first."
        )
    if not one.kept:
        return ConflictError(f"{who}: its payload was not kept, so it cannot be sent before it is due.")
    return None


_HINTS: dict[str, str] = {
    State.IN_REVIEW: " (see `tarry review`)",
    State.UNROUTABLE: " (its destination was not there; the service sends it on when it is)",
}

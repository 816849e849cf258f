"""`pause` and `resume`, as operators call them.

A pause is what somebody wants, for all destinations that match a pattern, also later ones; a hold is what is so at one
destination. Both are in Postgres before anything is done, and the service keeps the one in line with the other.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from tarry.control.actions import recorded
from tarry.control.desk import Desk
from tarry.control.destinations import bound_on_broker, destination_of, is_glob, matching, seen_in_books
from tarry.control.hold import begin_hold, read_holds, undo_hold
from tarry.control.pauses import active_pauses
from tarry.errors import BrokerError, BrokerUnreachableError, ControlError, NotFoundError

RATE = 500
"""Messages a second that a release lets go, unless somebody says otherwise."""

LOOK = timedelta(seconds=10)
"""How long a canary is watched at least."""


@dataclass(frozen=True, slots=True)
class Paused:
    """What an operator is told of a pause."""

    pattern: str
    pause_id: str
    until: datetime | None
    destinations: list[str]
    """Those that are held now; others that match are held when they appear."""
    problems: dict[str, str]
    """Destinations that could not be held, and why; the service goes on trying."""
    action_id: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """What an operator is told of a resume."""

    pattern: str
    destinations: list[str]
    """Those that the service releases now."""
    rate: int
    canary: bool
    action_id: str
    pauses_ended: list[str] = field(default_factory=list)
    """Patterns that hold nothing any more."""


async def pause(
    desk: Desk, pattern: str, *, actor: str, reason: str | None = None, lasts: timedelta | None = None
) -> Paused:
    """Returns to all destinations that match wait in their held queues, for good or for so long."""
    detail = {"reason": reason, "lasts_s": lasts.total_seconds() if lasts else None}
    async with recorded(desk.books, kind="pause", target=pattern, actor=actor, detail=detail) as action:
        labels = await _meant(desk, pattern)
        await desk.binder.version()  # no wish is written while the broker is away
        made = str(uuid.uuid4())
        row = await desk.books.one("begin_pause", id=made, pattern=pattern, actor=actor, reason=reason, lasts=lasts)
        problems = await _hold_all(desk, labels)
        if problems and all(label in problems and _is_refusal(problems[label]) for label in labels):
            await _undo(desk, made, labels)
            raise BrokerError("\n".join(dict.fromkeys(map(str, problems.values()))))
        held = [label for label in labels if label not in problems]
        told = {label: str(problem) for label, problem in problems.items()}
        answer = Paused(pattern, made, row[0] if row else None, held, told, action.id)
        action.outcome = asdict(answer)
    return answer


async def resume(
    desk: Desk, pattern: str, *, actor: str, rate: int = RATE, canary: bool = False, look: timedelta = LOOK
) -> Resumed:
    """What is held is let go by the service, at this rate, and after a canary if wanted."""
    if rate < 1:
        raise ControlError(f"A rate of {rate} a second lets nothing go: choose 1 or more.")
    detail = {"rate": rate, "canary": canary, "look_s": look.total_seconds()}
    async with recorded(desk.books, kind="resume", target=pattern, actor=actor, detail=detail) as action:
        holds, pauses = await read_holds(desk), await active_pauses(desk)
        labels = matching(pattern, (hold.label for hold in holds))
        ended = [one for one in pauses if one.pattern in matching(pattern, [one.pattern])]
        if not labels and not ended:
            raise NotFoundError(f"Nothing that matches {pattern!r} is paused: see `tarry holds`.")
        await desk.books.change("end_pauses", ids=[one.id for one in ended], by=actor)
        others = [one.id for one in pauses if one not in ended]
        await desk.books.change("except_destinations", ids=others, destinations=labels)
        await desk.books.change("release", destinations=labels, rate=rate, canary=canary, look=look)
        answer = Resumed(pattern, labels, rate, canary, action.id, [one.pattern for one in ended])
        action.outcome = asdict(answer)
    return answer


async def _meant(desk: Desk, pattern: str) -> list[str]:
    """The destinations that a pattern means now. A plain name must be one that somebody knows: it may be a slip."""
    bound = await bound_on_broker(desk)
    known = (bound or set()) | await seen_in_books(desk)
    if is_glob(pattern):
        return [label for label in matching(pattern, known) if destination_of(label).can_have_relay]
    if not destination_of(pattern).can_have_relay:
        raise ControlError(f"{pattern[:60]!r}… is too long a name to be held: its held queue could not be named.")
    if bound is not None and pattern not in known:
        raise NotFoundError(
            f"No retry ever went to {pattern!r}, and it is not attached: see `tarry attach --list`. "
            f"To hold what appears later, use a glob, as in '{pattern}*'."
        )
    return [pattern]


async def _hold_all(desk: Desk, labels: list[str]) -> dict[str, BrokerError]:
    """Those that could not be held, and why."""
    problems: dict[str, BrokerError] = {}
    for label in labels:
        try:
            await begin_hold(desk, label)
        except BrokerError as error:
            problems[label] = error
    return problems


def _is_refusal(problem: BrokerError) -> bool:
    """A broker that went away may have done it or not: the wish stays, and the service goes on."""
    return not isinstance(problem, BrokerUnreachableError)


async def _undo(desk: Desk, pause_id: str, labels: list[str]) -> None:
    """Nothing of it was done; what others want held stays so."""
    await desk.books.change("end_pauses", ids=[pause_id], by="refused by the broker")
    others = await active_pauses(desk)
    for label in labels:
        if not any(one.wants(label) for one in others):
            await undo_hold(desk, label)

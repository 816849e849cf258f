"""How destinations stand, for people: which are held, by whom and why, how much waits, and how far a release is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tarry.control.canary import CANARIES
from tarry.control.desk import Desk
from tarry.control.destinations import bound_on_broker, matching, seen_in_books
from tarry.control.hold import Hold, read_holds
from tarry.control.intake import Intake, read_intake
from tarry.control.pauses import Pause, active_pauses
from tarry.errors import BrokerError

ALL = "all"
"""The stage of a release that has no canary, or whose canaries have passed."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A pause, as it is shown."""

    pattern: str
    actor: str
    reason: str | None
    at: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Held:
    """One destination that is held or being released."""

    destination: str
    state: str
    """`holding`, `releasing`, or `canary_failed`."""
    since: datetime
    depth: int | None
    """Messages in its held queue; None where the broker could not be asked."""
    held: int
    """By the books."""
    released: int
    rate: int | None
    stage: str
    """Of a release: which canary is out, or `all`."""
    eta_s: float | None
    """Until all are released, once no canary has to pass any more."""
    problem: str | None
    pauses: list[Wish]


@dataclass(frozen=True, slots=True)
class Holds:
    """All of them, and what else is paused."""

    holds: list[Held]
    pauses: list[Wish]
    """All that are in force, also those that hold nothing yet."""
    intake: Intake


async def show_holds(desk: Desk) -> Holds:
    holds, pauses = await read_holds(desk), await active_pauses(desk)
    shown = [_held(hold, await _depth(desk, hold), pauses) for hold in holds]
    return Holds(shown, [_wish(one) for one in pauses], await read_intake(desk))


async def known_destinations(desk: Desk, pattern: str = "*") -> list[str]:
    """All that match: attached, delivered to before, with something open, or held."""
    known = await seen_in_books(desk) | {hold.label for hold in await read_holds(desk)}
    return matching(pattern, known | (await bound_on_broker(desk) or set()))


async def _depth(desk: Desk, hold: Hold) -> int | None:
    try:
        return await desk.binder.depth(desk.names.held_queue(hold.destination))
    except BrokerError:
        return None


def _held(hold: Hold, depth: int | None, pauses: list[Pause]) -> Held:
    releasing = hold.state == "releasing"
    stage = _stage(hold) if releasing else ""
    eta = depth / hold.rate if stage == ALL and hold.rate and depth is not None else None
    return Held(
        hold.label,
        hold.state,
        hold.since,
        depth,
        hold.held,
        hold.released,
        hold.rate if releasing else None,
        stage,
        eta,
        hold.problem,
        [_wish(one) for one in pauses if one.wants(hold.label)],
    )


def _stage(hold: Hold) -> str:
    if not hold.canary or hold.stage >= len(CANARIES):
        return ALL
    return f"canary of {CANARIES[hold.stage]}"


def _wish(pause: Pause) -> Wish:
    return Wish(pause.pattern, pause.actor, pause.reason, pause.at, pause.until)

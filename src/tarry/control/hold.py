"""One hold: a binding on the held gate, which keeps a destination's returns in its held queue."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tarry.control.desk import Desk
from tarry.control.destinations import destination_of
from tarry.core.names import Destination
from tarry.errors import BrokerError, BrokerUnreachableError, MissingOnBrokerError
from tarry.topology.blueprint import held_queue

HELD = ("holding", "canary_failed")
"""States in which nothing is let go."""

UNKNOWN = "bound on the broker, and nobody knows why: resume it, or pause it anew"


@dataclass(frozen=True, slots=True)
class Hold:
    """One destination that is held or being released."""

    label: str
    kind: str
    name: str
    state: str
    state_since: datetime
    since: datetime
    bound_at: datetime | None
    rate: int | None
    canary: bool
    look: timedelta
    stage: int
    stage_since: datetime | None
    stage_ids: list[dict[str, Any]] | None
    stage_queues: dict[str, dict[str, Any]] | None
    released: int
    problem: str | None
    held: int
    """By the books."""

    @property
    def destination(self) -> Destination:
        return destination_of(self.label)


async def read_holds(desk: Desk) -> list[Hold]:
    return [Hold(*row) for row in await desk.books.rows("holds")]


async def begin_hold(desk: Desk, label: str) -> None:
    """First the books, then the broker. Raises what the broker says; the hold then says so too."""
    destination = destination_of(label)
    await desk.books.change("hold", destination=label, kind=destination.kind, name=destination.name)
    await assert_hold(desk, label)


async def assert_hold(desk: Desk, label: str) -> None:
    """The binding is there, whatever the broker has forgotten meanwhile; unless it is no longer to be held.

    The row is locked meanwhile: a release that ends takes the binding away under the same lock, and must not find it
    made again by somebody who looked a moment earlier.
    """
    try:
        async with desk.books.transaction() as page:
            row = await page.one("lock_hold", destination=label)
            if row is not None and row[0] in HELD:
                await _bind(desk, destination_of(label))
                await page.change("hold_bound", destination=label)
    except BrokerError as error:
        await desk.books.change("hold_problem", destination=label, problem=str(error))
        raise


async def adopt_hold(desk: Desk, label: str) -> None:
    """It is bound already, and the books have lost it."""
    destination = destination_of(label)
    about = {"kind": destination.kind, "name": destination.name, "problem": UNKNOWN}
    await desk.books.change("adopt_hold", destination=label, **about)


async def undo_hold(desk: Desk, label: str) -> None:
    """The broker has refused it: nothing is held."""
    destination = destination_of(label)
    with suppress(BrokerError):
        await desk.unbind(desk.names.held_queue(destination), desk.names.held_gate, destination.key)
    await desk.books.change("drop_hold", destination=label)


async def _bind(desk: Desk, destination: Destination) -> None:
    queue = desk.names.held_queue(destination)
    try:
        await desk.bind(queue, desk.names.held_gate, destination.key)
    except MissingOnBrokerError:
        await _declare(desk, destination)
        await desk.bind(queue, desk.names.held_gate, destination.key)


async def _declare(desk: Desk, destination: Destination) -> None:
    """A destination that nobody attached has no held queue yet."""
    try:
        await desk.binder.declare(held_queue(desk.names, destination))
    except BrokerUnreachableError:
        raise
    except BrokerError as error:
        raise BrokerError(
            f"{desk.names.held_queue(destination)!r} is not there, and this user may not declare it: attach the "
            f"destination with `tarry attach {destination.name}`, or pause it as the deploy user. ({error})"
        ) from error

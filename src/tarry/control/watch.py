"""The watcher of holds: keeps what is so in line with what is wanted.

Every service runs it; whoever has the lock watches, and releases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from tarry.control.actions import recorded
from tarry.control.beside import now_and_then, sleep_unless
from tarry.control.books import Page
from tarry.control.desk import Desk
from tarry.control.destinations import bound_on_broker, destination_of, held_on_broker, is_glob, seen_in_books
from tarry.control.hold import HELD, Hold, adopt_hold, assert_hold, begin_hold, read_holds
from tarry.control.holds import LOOK, RATE
from tarry.control.pauses import Pause, active_pauses
from tarry.control.release import Release
from tarry.errors import BrokerError

log = structlog.get_logger()

LOCK = 7312005
EVERY = 1.0
ASSERT_EVERY = 30.0
"""Seconds after which every binding is made again: a broker that lost its data has lost them too."""

SETTLED = timedelta(seconds=2)
"""So long after its due moment a message that was not seen to return is in the held queue."""


async def run(desk: Desk, stop: asyncio.Event, *, every: float = EVERY) -> None:
    """Until `stop` is set."""

    async def watch() -> None:
        async with desk.books.lock(LOCK) as page:
            if page is not None:
                await _watch(Watcher(desk), page, stop, every)

    await now_and_then("watching holds", watch, stop, every)


async def _watch(watcher: Watcher, page: Page, stop: asyncio.Event, every: float) -> None:
    """For as long as the lock's connection lives: without it somebody else is the watcher."""
    try:
        while not stop.is_set():
            await page.rows("clock")
            await watcher.look()
            await sleep_unless(stop, every)
    finally:
        await watcher.close()


@dataclass(slots=True)
class Watcher:
    """One look after the other."""

    desk: Desk
    assert_every: float = ASSERT_EVERY
    _asserted_at: float = float("-inf")
    _unknown: set[str] = field(default_factory=set)
    _releases: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def look(self) -> None:
        """What has run out ends, what is new is held, what is held is marked so, what is to go is let go."""
        pauses, holds = await active_pauses(self.desk), await read_holds(self.desk)
        await self._end(pauses, holds)
        await self._hold_new(pauses, holds)
        await self._assert(holds)
        await self.desk.books.change("mark_held", margin=SETTLED, actor=self.desk.actor)
        self._release(await read_holds(self.desk))

    async def close(self) -> None:
        for task in self._releases.values():
            task.cancel()
        await asyncio.gather(*self._releases.values(), return_exceptions=True)

    async def _end(self, pauses: list[Pause], holds: list[Hold]) -> None:
        """Pauses whose time is over; what another pause wants stays held."""
        lasting = [one for one in pauses if not one.is_over]
        for pause in pauses:
            if pause.is_over:
                free = [
                    hold.label
                    for hold in holds
                    if pause.wants(hold.label) and not any(other.wants(hold.label) for other in lasting)
                ]
                await self._resume(pause, free)

    async def _resume(self, pause: Pause, labels: list[str]) -> None:
        desk, why = self.desk, f"the time of {pause.actor}'s pause was over"
        async with recorded(
            desk.books, kind="resume", target=pause.pattern, actor=desk.actor, detail={"why": why}
        ) as it:
            await desk.books.change("end_pauses", ids=[pause.id], by=why)
            await desk.books.change("release", destinations=labels, rate=RATE, canary=False, look=LOOK)
            it.outcome = {"destinations": labels}
        log.info("a pause is over", pattern=pause.pattern, destinations=labels)

    async def _hold_new(self, pauses: list[Pause], holds: list[Hold]) -> None:
        """Destinations that appeared after the pause."""
        wanted = [one for one in pauses if not one.is_over]
        if not any(is_glob(one.pattern) for one in wanted):
            return
        known = await seen_in_books(self.desk)
        if self._time_to_assert():
            known |= await bound_on_broker(self.desk) or set()
        held = {hold.label for hold in holds}
        for label in sorted(known - held):
            if destination_of(label).can_have_relay and any(one.wants(label) for one in wanted):
                await self._try(begin_hold(self.desk, label), label)

    async def _assert(self, holds: list[Hold]) -> None:
        everything = self._time_to_assert()
        if everything:
            self._asserted_at = asyncio.get_running_loop().time()
            await self._adopt()
        for hold in holds:
            if hold.state in HELD and (everything or hold.bound_at is None):
                await self._try(assert_hold(self.desk, hold.label), hold.label)

    async def _adopt(self) -> None:
        """A binding that the books know nothing of, at two looks, becomes a hold that people see and can resume."""
        bound = await held_on_broker(self.desk)
        unknown = bound - {hold.label for hold in await read_holds(self.desk)}
        for label in sorted(unknown & self._unknown):
            await adopt_hold(self.desk, label)
            log.warning("found a hold that nobody knows of", destination=label, do=f"tarry resume '{label}'")
        self._unknown = unknown

    def _time_to_assert(self) -> bool:
        return asyncio.get_running_loop().time() - self._asserted_at > self.assert_every

    async def _try(self, work: Awaitable[None], label: str) -> None:
        """One destination that cannot be held must not keep others from it."""
        try:
            await work
        except BrokerError as error:
            log.warning("a destination could not be held", destination=label, reason=str(error))

    def _release(self, holds: list[Hold]) -> None:
        """One task for each hold that is to be released; one that ended early begins anew."""
        for hold in holds:
            running = self._releases.get(hold.label)
            if running is not None and running.done():
                self._tell(hold.label, running)
                running = None
            if hold.state == "releasing" and running is None:
                self._releases[hold.label] = asyncio.create_task(Release(self.desk, hold).run())

    def _tell(self, label: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("a release was cut off, it goes on", destination=label, reason=str(error))

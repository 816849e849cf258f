"""The pause reconciler: brings the state of each destination in line with the pauses that operators requested.

Every service runs it; only the process that has the lock reconciles and releases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from tarry.core.breaker import BreakerState
from tarry.core.names import Destination, describe_holder, holder_of_label
from tarry.errors import AuditError, BrokerError
from tarry.operations.action_log import recorded
from tarry.operations.breaker_reconciler import (
    BreakerCounts,
    KnownBreakers,
    OnChange,
    forget_counts,
    reconcile_breakers,
)
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import (
    HeldBinding,
    bound_on_broker,
    can_be_held,
    held_bindings,
    held_on_broker,
    is_glob,
    seen_in_store,
)
from tarry.operations.intake import end_expired_intake
from tarry.operations.pause import Pause, active_pauses, release
from tarry.operations.paused_destination import (
    HELD,
    SEEN_WITHIN,
    PausedDestination,
    adopt_pause,
    assert_pause,
    assert_throttle,
    begin_pause,
    command_arguments,
    count_paused_destinations,
    read_paused_destinations,
)
from tarry.operations.release import AT_ONCE, Release
from tarry.operations.throttle import (
    active_throttles,
    end_expired_throttles,
    limits_unknown_destinations,
    reconcile_throttles,
)
from tarry.store.database import AdvisoryLock, PostgresSession
from tarry.tasks import now_and_then, sleep_unless

log = structlog.get_logger()

EVERY = 1.0
ASSERT_EVERY = 30.0
"""Seconds after which every binding is checked: a broker that lost its data has lost its bindings too."""

SETTLED = timedelta(seconds=2)
"""How long after its due time a message that was not seen to return is taken to be in the held queue."""

COUNT_SHARE = 0.1
"""The most of the time that is spent on counting held retries."""


OnHeld = Callable[[Sequence[str]], None]
"""Called with the queues of retries that came due and are held."""

OnLook = Callable[[Sequence[PausedDestination]], None]
"""Called after each pass with all that is paused, throttled or being released; with nothing once another process has
the lock."""

OnBreakers = Callable[[Mapping[str, BreakerState]], None]
"""The same with the states of breakers."""


@dataclass(frozen=True, slots=True)
class Watchers:
    """What is called on each pass."""

    on_held: OnHeld = lambda _: None
    on_look: OnLook = lambda _: None
    on_breakers: OnBreakers = lambda _: None
    on_breaker_change: OnChange = lambda _, __: None


NO_WATCHERS = Watchers()


async def run(
    context: OperatorContext,
    stop: asyncio.Event,
    *,
    every: float = EVERY,
    watchers: Watchers = NO_WATCHERS,
    counts: BreakerCounts | None = None,
) -> None:
    """Runs until `stop` is set. `counts` is what this router counts for breakers, whether it has the lock or not."""
    seen = counts or BreakerCounts(context)
    watcher = PauseReconciler(context, watchers=watchers, tap_is_behind=seen.tap_is_behind)

    async def watch() -> None:
        await seen.store()
        async with context.store.lock(AdvisoryLock.PAUSE_RECONCILER) as page:
            if page is None:
                await watcher.close()  # another process has the lock: it releases now
            else:
                await _watch(watcher, seen, page, stop, every)

    try:
        await now_and_then("pause reconciler", watch, stop, every)
    finally:
        await watcher.close()


async def _watch(
    watcher: PauseReconciler, counts: BreakerCounts, page: PostgresSession, stop: asyncio.Event, every: float
) -> None:
    """Runs while the lock's connection is open: once it is lost, another process can take the lock."""
    try:
        while not stop.is_set():
            await page.rows("clock")
            await counts.store()
            await watcher.look()
            await sleep_unless(stop, every)
    finally:
        await watcher.end_releases(but_throttles=True)


@dataclass(slots=True)
class PauseReconciler:
    """Reconciles in passes, and keeps the running releases between them."""

    context: OperatorContext
    assert_every: float = ASSERT_EVERY
    watchers: Watchers = NO_WATCHERS
    tap_is_behind: Callable[[], bool] = lambda: False
    _doubts: dict[str, datetime] = field(default_factory=dict)
    """Since when breakers that would open have waited for the tap."""
    _asserted_at: float = float("-inf")
    _unknown: set[str] = field(default_factory=set)
    _releases: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _running: dict[str, Release] = field(default_factory=dict)
    """The same releases."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _held: dict[str, int | None] = field(default_factory=dict)
    _counting: asyncio.Task[None] | None = None
    _breakers: KnownBreakers = field(init=False)

    def __post_init__(self) -> None:
        self._breakers = KnownBreakers(self.context)

    async def look(self) -> None:
        """One pass: ends expired pauses, pauses and throttles new destinations, marks held retries, starts releases."""
        pauses, paused_destinations = await active_pauses(self.context), await read_paused_destinations(self.context)
        if any(one.is_over for one in pauses):
            await self._end()
        await end_expired_intake(self.context)
        await self._hold_new(pauses, paused_destinations)
        await self._throttle(paused_destinations)
        on_change = self.watchers.on_breaker_change
        self.watchers.on_breakers(
            await reconcile_breakers(self._breakers, pauses, on_change, self._doubts, self.tap_is_behind)
        )
        await self._assert(paused_destinations)
        held = await self.context.store.rows(
            "mark_held", margin=SETTLED, seen_within=SEEN_WITHIN, actor=self.context.actor
        )
        self.watchers.on_held([row[0] for row in held])
        paused_destinations = await read_paused_destinations(self.context)
        self._release(paused_destinations)
        self._show(paused_destinations)

    async def close(self) -> None:
        self.watchers.on_look([])
        self.watchers.on_breakers({})
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.gather(self._counting, return_exceptions=True)
        await self.end_releases()

    async def end_releases(self, *, but_throttles: bool = False) -> None:
        """Throttles can go on until another process has the lock: while Postgres is away, their messages would wait
        while all others return.
        """
        kept = {label for label, release in self._running.items() if release.is_endless} if but_throttles else set()
        over = self._releases.keys() - kept
        ended = [self._releases.pop(label) for label in over]
        for label in over:
            del self._running[label]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _end(self) -> None:
        """Ends expired pauses; a destination that another pause matches stays paused.

        A pause is stored before its destinations are. They are read first: a pause that is not found below has not
        changed them yet, and when it does, they are not released.
        """
        paused_destinations, pauses = await read_paused_destinations(self.context), await active_pauses(self.context)
        lasting = [one for one in pauses if not one.is_over]
        for pause in pauses:
            if pause.is_over:
                free = [
                    paused
                    for paused in paused_destinations
                    if pause.wants(paused.label) and not any(other.wants(paused.label) for other in lasting)
                ]
                await self._resume(pause, free)

    async def _resume(self, pause: Pause, free: list[PausedDestination]) -> None:
        context, why = self.context, f"{pause.actor}'s pause expired"
        detail = {"why": why, **asdict(pause.at_end)}
        async with recorded(
            context.store, kind="resume", target=pause.target, actor=context.actor, detail=detail
        ) as it:
            async with context.store.transaction() as page:
                labels = await release(page, free, pause.at_end, by=None)
                await page.change("end_pauses", ids=[pause.id], by=why)
            it.outcome = {"destinations": labels}
        log.info("pause expired", target=pause.target, destinations=labels)

    async def _hold_new(self, pauses: list[Pause], paused_destinations: list[PausedDestination]) -> None:
        """Pauses destinations that appeared after the pause was requested."""
        wanted = [one for one in pauses if not one.is_over and one.scope == "queue"]
        if not any(is_glob(one.pattern) for one in wanted):
            return
        known = await self._known()
        held = {paused.label for paused in paused_destinations}
        for label in sorted(known - held):
            if can_be_held(label) and any(one.wants(label) for one in wanted):
                await self._try(begin_pause(self.context, Destination.of_label(label)), label)

    async def _throttle(self, paused_destinations: list[PausedDestination]) -> None:
        throttles = await active_throttles(self.context)
        await end_expired_throttles(self.context, throttles)
        some = limits_unknown_destinations(throttles, self.context.files)
        known = await self._known() if some else set()
        await reconcile_throttles(self.context, throttles, paused_destinations, known)

    async def _known(self) -> set[str]:
        """Destinations with open retries; now and then also those that had some before."""
        known = await seen_in_store(self.context)
        return known | (await bound_on_broker(self.context) or set()) if self._time_to_assert() else known

    async def _assert(self, paused_destinations: list[PausedDestination]) -> None:
        everything = self._time_to_assert()
        bound: set[HeldBinding] = set()
        if everything:
            self._asserted_at = asyncio.get_running_loop().time()
            await self._adopt()
            await forget_counts(self.context)
            bound = await held_bindings(self.context)
        for paused in paused_destinations:
            if paused.state in HELD:
                if paused.bound_at is None or (everything and not self._is_bound(paused, bound)):
                    await self._try(assert_pause(self.context, paused.holder), paused.label)
            elif paused.throttle is not None and everything and not self._is_bound(paused, bound):
                await self._try(assert_throttle(self.context, paused.holder), paused.label)

    def _is_bound(self, paused: PausedDestination, bound: set[HeldBinding]) -> bool:
        """Whether the broker has just the bindings that it should have. Ten thousand of them are compared in a moment,
        and would take minutes to be created again. Of policies and job types more is checked, and there are few.
        """
        names, holder = self.context.names, paused.holder
        if not isinstance(holder, Destination):
            return False
        held, recheck = (
            HeldBinding(exchange, names.held_queue(holder), holder.key) in bound
            for exchange in (names.holding_exchange(holder), names.rechecking_exchange(holder))
        )
        return held and recheck is (paused.state in HELD)

    async def _adopt(self) -> None:
        """Adopts bindings that are missing in the store at two checks, so that operators can see and resume them."""
        bound = await held_on_broker(self.context)
        unknown = bound - {paused.label for paused in await read_paused_destinations(self.context)}
        for label in sorted(unknown & self._unknown):
            await self._adopt_one(label)
        self._unknown = unknown

    async def _adopt_one(self, label: str) -> None:
        holder = holder_of_label(label)
        if holder.label != label:  # a long name is not known: its key is a hash
            do = "pause and resume the policy or job type with the long name"
            log.warning("found a pause of a long name that is not recorded", key=label, do=do)
            return
        await adopt_pause(self.context, holder)
        do = f"tarry resume {command_arguments(holder)}"
        log.warning("found a paused destination that is not recorded", destination=describe_holder(holder), do=do)

    def _time_to_assert(self) -> bool:
        return asyncio.get_running_loop().time() - self._asserted_at > self.assert_every

    async def _try(self, work: Awaitable[object], label: str) -> None:
        """A destination that cannot be paused must not block the others."""
        try:
            await work
        except BrokerError as error:
            log.warning("destination could not be paused", destination=label, reason=str(error))

    def _release(self, paused_destinations: list[PausedDestination]) -> None:
        """Runs one task for each destination that is to be released; a task that ended early is started again."""
        for label in [label for label, task in self._releases.items() if task.done()]:
            self._tell(label, self._releases.pop(label))
            del self._running[label]
        for paused in paused_destinations:
            if paused.state == "releasing" and paused.label not in self._releases:
                work = self._running[paused.label] = Release(self.context, paused, self._slots)
                self._releases[paused.label] = asyncio.create_task(work.run())

    def _show(self, paused_destinations: list[PausedDestination]) -> None:
        """With the latest numbers of held retries. They are counted apart: no pass waits for millions."""
        if self._counting is None or self._counting.done():
            throttled = any(one.throttle is not None for one in paused_destinations)
            self._counting = asyncio.create_task(self._count()) if throttled else None
        self.watchers.on_look([replace(one, held=self._held.get(one.label)) for one in paused_destinations])

    async def _count(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            self._held = {one.label: one.held for one in await count_paused_destinations(self.context)}
        except AuditError as error:
            self._held = {}
            log.warning("held retries were not counted", reason=str(error))
        await asyncio.sleep((clock() - began) * (1 / COUNT_SHARE - 1))

    def _tell(self, label: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("release interrupted, trying again", destination=label, reason=str(error))

"""Opens and closes breakers, on each pass of the pause reconciler; and counts what they need.

Every router counts the returns and failures that it sees, and stores them once a second. Only the process that has the
lock of the pause reconciler opens and closes. Without Postgres there are no counts, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from tarry.core.breaker import (
    FIRST_RATE,
    BreakerState,
    Move,
    ReleaseState,
    ReturnCounts,
    StoredBreaker,
    doubles,
    next_move,
    trips,
)
from tarry.core.names import Destination
from tarry.errors import BrokerError
from tarry.operations.action_log import recorded
from tarry.operations.breaker import (
    KINDS,
    BreakerRow,
    PolicyBreaker,
    breaker_of,
    hold,
    is_paused_by_operator,
    let_go,
    lock_breaker,
    lock_destination,
    read_breakers,
    read_counts,
    set_breaker,
)
from tarry.operations.context import OperatorContext
from tarry.operations.pause import Pause
from tarry.operations.paused_destination import (
    HELD,
    RELEASE_RATE,
    PausedDestination,
    assert_pause,
    read_paused_destinations,
    store_pause,
)
from tarry.topology.model import Topology

log = structlog.get_logger()

MOST_REMEMBERED = 20_000
"""Queues whose breakers a router remembers."""

NO_BREAKER = "no policy of the queue has a breaker any more"

TAP_PATIENCE = timedelta(seconds=10)
"""How long a breaker that would open waits for a tap that is behind. Failures are counted at once, and returns when the
tap has recorded them: until then the share looks larger than it is.
"""

OnChange = Callable[[str, BreakerState], None]
"""Called with each destination whose breaker has changed, and its new state."""


@dataclass(slots=True)
class KnownBreakers:
    """The breakers of queues by the files in use. Each is asked for once a second, or for each message."""

    context: OperatorContext
    _known: dict[str, PolicyBreaker | None] = field(default_factory=dict)
    _files: object = None

    def of(self, label: str) -> PolicyBreaker | None:
        if self._files is not self.context.files or len(self._known) >= MOST_REMEMBERED:
            self._files, self._known = self.context.files, {}
        if label not in self._known:
            self._known[label] = breaker_of(label, self.context.files)
        return self._known[label]


@dataclass(slots=True)
class BreakerCounts:
    """The returns and failures that one router has seen since it last stored them, of queues with a breaker."""

    context: OperatorContext
    tap_is_behind: Callable[[], bool] = lambda: False
    """Whether the tap of this router has returns that it has not recorded."""
    _counts: dict[str, list[int]] = field(default_factory=dict)
    _breakers: KnownBreakers = field(init=False)

    def __post_init__(self) -> None:
        self._breakers = KnownBreakers(self.context)

    def add_returned(self, queues: Iterable[str]) -> None:
        self._add(queues, 0)

    def add_failed(self, queues: Iterable[str]) -> None:
        self._add(queues, 1)

    async def store(self) -> None:
        """What cannot be stored is forgotten: it would be counted at the wrong time."""
        counts, self._counts = self._counts, {}
        if counts:
            await self.context.store.change(
                "add_breaker_counts",
                destinations=list(counts),
                returned=[returned for returned, _ in counts.values()],
                failed=[failed for _, failed in counts.values()],
            )

    def _add(self, queues: Iterable[str], which: int) -> None:
        for queue in queues:
            if self._breakers.of(queue) is not None:
                self._counts.setdefault(queue, [0, 0])[which] += 1


@dataclass(frozen=True, slots=True)
class BreakerPass:
    """One pass over the breakers."""

    breakers: KnownBreakers
    pauses: Sequence[Pause]
    paused: Mapping[str, PausedDestination]
    on_change: OnChange = lambda _, __: None
    doubts: dict[str, datetime] = field(default_factory=dict)
    """Since when breakers that would open have waited for the tap. Kept from one pass to the next."""
    tap_is_behind: Callable[[], bool] = lambda: False

    @property
    def context(self) -> OperatorContext:
        return self.breakers.context

    async def run(self) -> dict[str, BreakerState]:
        """Makes all changes that are due; the states of those that have been open."""
        if not isinstance(self.context.files, Topology):  # their errors must not end a breaker
            return {}
        rows = await read_breakers(self.context)
        labels = set(rows) | {row[0] for row in await self.context.store.rows("counted_lately")}
        found = {label: rule for label in labels if (rule := self.breakers.of(label)) is not None}
        if found:
            rules = {label: one.rule for label, one in found.items()}
            counts, now = await read_counts(self.context, rules, rows)
            for label, one in sorted(found.items()):
                if now is not None:
                    await self._look(label, one, rows.get(label), counts.get(label, ReturnCounts()), now)
        for label in sorted(set(rows) - set(found)):
            await self._end(label, rows[label])
        return {label: row.state for label, row in (await read_breakers(self.context)).items()} if labels else {}

    async def _look(
        self, label: str, policy: PolicyBreaker, row: BreakerRow | None, counts: ReturnCounts, now: datetime
    ) -> None:
        standing = row.standing if row else StoredBreaker()
        if standing.state is BreakerState.OPEN and not self._is_held(label):
            await self._hold_again(label)
            return
        move = next_move(policy.rule, standing, counts, self._release(label, standing), now)
        by_share = standing.state in (BreakerState.CLOSED, BreakerState.CLOSING) and trips(policy.rule, counts)
        if move is not None and move.state is BreakerState.OPEN and by_share and await self._waits_for_tap(label, now):
            return
        self.doubts.pop(label, None)
        if move is not None:
            await self._move(label, policy, row, move, counts)
        elif standing.state is BreakerState.CLOSING and doubles(policy.rule, standing, counts, now):
            await self._double(label)

    async def _waits_for_tap(self, label: str, now: datetime) -> bool:
        """Whether returns may not be counted yet."""
        if now - self.doubts.setdefault(label, now) >= TAP_PATIENCE:
            return False
        if self.tap_is_behind():
            return True
        try:
            return await self.context.binder.depth(self.context.names.audit) > 0
        except BrokerError:
            return False

    def _release(self, label: str, standing: StoredBreaker) -> ReleaseState:
        """What its paused destination tells."""
        paused, pauses = self.paused.get(label), [one for one in self.pauses if one.scope == "queue"]
        is_paused = any(one.wants(label) and not one.is_over for one in pauses)
        if standing.state is BreakerState.OPEN:
            return ReleaseState(is_paused)
        if paused is None:
            return ReleaseState(is_paused, has_passed=True, is_over=True)
        if standing.state is BreakerState.CLOSED:
            return ReleaseState(is_paused or paused.state in HELD)
        has_failed = paused.by_breaker and paused.state == "canary_failed"
        keeps_up = paused.throttle is not None and (paused.rate or 0) >= min(paused.throttle, RELEASE_RATE)
        return ReleaseState(
            is_paused or (paused.state in HELD and not has_failed),
            has_passed=paused.state == "releasing" and paused.stage > 0,
            has_failed=has_failed,
            is_over=keeps_up and standing.state is BreakerState.CLOSING,
        )

    async def _move(
        self, label: str, policy: PolicyBreaker, row: BreakerRow | None, move: Move, counts: ReturnCounts
    ) -> None:
        """Nothing is done if its paused destination, or the breaker, has changed since it was read."""
        detail = {"why": move.reason, "policy": policy.policy, "returned": counts.returned, "failed": counts.failed}
        detail |= {"wait_s": move.wait.total_seconds() if move.wait else None}
        kind, actor = KINDS[move.state], self.context.actor
        async with recorded(self.context.store, kind=kind, target=label, actor=actor, detail=detail) as action:
            done = await self._store(label, policy, row, move)
            action.outcome = {"state": str(move.state)} if done else {"answer": "not done: it has just changed"}
        if not done:
            return
        write = log.warning if move.state is BreakerState.OPEN else log.info
        write(
            kind.replace("_", " "), destination=label, reason=move.reason, policy=policy.policy, wait_s=detail["wait_s"]
        )
        self.on_change(label, move.state)
        if move.state is BreakerState.OPEN:
            await self._bind(label)

    async def _store(self, label: str, policy: PolicyBreaker, row: BreakerRow | None, move: Move) -> bool:
        """In one transaction, so that any process can go on after a crash."""
        paused = self.paused.get(label)
        async with self.context.store.transaction() as page:
            locked = await lock_destination(page, label)
            known = await lock_breaker(page, label)
            if (known.since if known else None) != (row.since if row else None):
                return False
            if paused is not None and (locked is None or locked[3] != paused.state_since):
                return False
            pause_id = row.pause_id if row else None
            match move.state:
                case BreakerState.OPEN:
                    await hold(page, label, move, policy.policy, actor=self.context.actor)
                case BreakerState.HALF_OPEN:
                    if await is_paused_by_operator(page, label):  # since it was read
                        return False
                    await set_breaker(page, label, move, policy.policy, pause_id=pause_id, forced=None)
                    if locked is not None:
                        how = {"rate": FIRST_RATE, "canary": True, "observe": policy.rule.observe, "by": None}
                        await page.rows(
                            "release", destinations=[label], state_since=[locked[3]], **how, by_breaker=True
                        )
                case BreakerState.CLOSING:
                    await set_breaker(page, label, move, policy.policy, pause_id=pause_id, forced=None)
                case BreakerState.CLOSED:
                    await let_go(page, label, move, policy.policy, actor=self.context.actor)
        return True

    def _is_held(self, label: str) -> bool:
        paused = self.paused.get(label)
        return paused is not None and paused.state in HELD

    async def _hold_again(self, label: str) -> None:
        """Of an open breaker, if its destination is not held any more: another version has released it."""
        async with self.context.store.transaction() as page:
            paused = await lock_destination(page, label)
            known = await lock_breaker(page, label)
            if known is None or known.state is not BreakerState.OPEN or (paused is not None and paused[0] in HELD):
                return
            await store_pause(page, Destination.of_label(label))
        await self._bind(label)

    async def _bind(self, label: str) -> None:
        try:
            await assert_pause(self.context, Destination.of_label(label))
        except BrokerError as error:  # the next pass tries again
            log.warning("breaker could not hold its destination", destination=label, reason=str(error))

    async def _double(self, label: str) -> None:
        paused = self.paused.get(label)
        if paused is None or paused.state != "releasing" or not paused.by_breaker:
            return
        rate = min(RELEASE_RATE, (paused.rate or FIRST_RATE) * 2)
        await self.context.store.change("breaker_rate", destination=label, rate=rate)

    async def _end(self, label: str, row: BreakerRow) -> None:
        """Its policies have no breaker any more."""
        if self.breakers.of(label) is not None:
            return
        if row.state is BreakerState.CLOSED:
            await self.context.store.change("drop_breaker", destination=label)
            return
        kind, detail = KINDS[BreakerState.CLOSED], {"why": NO_BREAKER}
        async with recorded(
            self.context.store, kind=kind, target=label, actor=self.context.actor, detail=detail
        ) as action:
            async with self.context.store.transaction() as page:
                await let_go(page, label, Move(BreakerState.CLOSED, NO_BREAKER), None, actor=self.context.actor)
            action.outcome = {"state": str(BreakerState.CLOSED)}
        log.info("breaker closed", destination=label, reason=NO_BREAKER)
        self.on_change(label, BreakerState.CLOSED)


async def reconcile_breakers(
    breakers: KnownBreakers,
    pauses: Sequence[Pause],
    on_change: OnChange,
    doubts: dict[str, datetime],
    tap_is_behind: Callable[[], bool],
) -> dict[str, BreakerState]:
    paused = {one.label: one for one in await read_paused_destinations(breakers.context)}
    return await BreakerPass(breakers, pauses, paused, on_change, doubts, tap_is_behind).run()


async def forget_counts(context: OperatorContext) -> None:
    """Those that no breaker counts any more."""
    if isinstance(context.files, Topology):
        windows = [policy.breaker.window for policy in context.files.policies if policy.breaker is not None]
        await context.store.change("forget_breaker_counts", older_than=max(windows, default=timedelta(0)))

"""The short forms: a few hundred messages, faults of a moment, several in one scene, several scenes at once.

Scenes have routers, queues and a database of their own. Those whose faults hit nobody else share a broker at the same
time: most of a scene is waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tests.chaos.faults.brokers import BrokerKilled, BrokerRestarted, DiskAlarm, MemoryAlarm
from tests.chaos.faults.destinations import DestinationDeleted, DestinationFull, DestinationRedeclared, TierDeleted
from tests.chaos.faults.fault import Fault, Size
from tests.chaos.faults.postgres import (
    PostgresFull,
    PostgresKilled,
    PostgresRestarted,
    PostgresSetBack,
    PostgresSlow,
)
from tests.chaos.faults.routers import (
    BlackHole,
    ClockJump,
    ConnectionCut,
    OnlyRouterKilled,
    RouterFrozen,
    RouterKilled,
    TapAway,
    TwoPolicies,
)
from tests.chaos.judge import Verdict
from tests.chaos.run import Run
from tests.chaos.stage import Stage

SIZE = Size(200, 50)
SEED = 1
PATIENCE = 60.0
AT_ONCE = 2
"""Scenes. Each has half a dozen processes: with more of them a busy machine makes copies that no fault explains."""


@dataclass(frozen=True)
class Group:
    """Faults that come one after the other in one scene."""

    faults: Sequence[type[Fault]]
    broken: bool = False
    patience: float = PATIENCE

    def verdict(self, stage: Stage) -> Verdict:
        able = [fault for fault in (one(short=True) for one in self.faults) if fault.obstacle(stage) is None]
        return Run(stage, able, SIZE, SEED, broken=self.broken, patience=self.patience).verdict()


APART: Mapping[str, Group] = {
    "routers hear nothing": Group((BlackHole, RouterFrozen)),
    "lost by hand": Group((TierDeleted, PostgresSetBack)),
    "routers disagree": Group((ClockJump, TapAway, TwoPolicies)),
    "destinations vanish": Group((DestinationDeleted, DestinationRedeclared, DestinationFull)),
}
"""They hit nobody beside their own scene. The long ones first."""

ONE_OF_EACH_KIND = Group((RouterKilled, ConnectionCut, DestinationFull, PostgresKilled, BrokerKilled))
"""What `make test` has of all this: one fault of a router, a connection, a destination, Postgres and the broker."""

ROUTERS_DIE = Group((RouterKilled, ConnectionCut, OnlyRouterKilled))

BROKEN = Group((ConnectionCut,) * 2, broken=True, patience=8)
"""With the router that is known to lose messages."""

SERVICES = Group(
    (
        BrokerKilled,
        MemoryAlarm,
        PostgresKilled,
        PostgresSlow,
        DiskAlarm,
        PostgresRestarted,
        PostgresFull,
        BrokerRestarted,
    )
)
"""They affect every scene on the same broker or Postgres."""


def side_by_side(stage: Stage) -> dict[str, Future[Verdict]]:
    """All of them done, well or badly."""
    with ThreadPoolExecutor(AT_ONCE) as scenes:
        return {name: scenes.submit(group.verdict, stage) for name, group in APART.items()}

"""Every fault there is, in the order in which a full run goes through them."""

from __future__ import annotations

from tests.chaos.faults.brokers import BrokerKilled, BrokerRestarted, DiskAlarm, MemoryAlarm
from tests.chaos.faults.cluster import DestinationWithoutQuorum, NetworkCut, NodesKilled, RollingRestart
from tests.chaos.faults.destinations import DestinationDeleted, DestinationFull, DestinationRedeclared, TierDeleted
from tests.chaos.faults.fault import Fault
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

FAULTS: tuple[type[Fault], ...] = (
    RouterKilled,
    OnlyRouterKilled,
    RouterFrozen,
    ConnectionCut,
    BlackHole,
    ClockJump,
    TwoPolicies,
    BrokerKilled,
    BrokerRestarted,
    MemoryAlarm,
    DiskAlarm,
    PostgresKilled,
    PostgresRestarted,
    PostgresSlow,
    PostgresFull,
    PostgresSetBack,
    DestinationDeleted,
    DestinationRedeclared,
    DestinationFull,
    TierDeleted,
    TapAway,
    NodesKilled,
    RollingRestart,
    NetworkCut,
    DestinationWithoutQuorum,
)

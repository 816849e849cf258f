"""The short form of every fault: a few hundred messages, several faults in one scene. `make chaos` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Endure, assert_proven, at_length
from tests.chaos.faults.brokers import BrokerKilled, BrokerRestarted, DiskAlarm, MemoryAlarm
from tests.chaos.faults.destinations import DestinationDeleted, DestinationFull, DestinationRedeclared, TierDeleted
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

# All in one worker: they share one broker, and it is broken now and then.
pytestmark = pytest.mark.timeout(300)


def test_routers_may_die_and_be_cut_off(endure: Endure) -> None:
    assert_proven(endure(RouterKilled, ConnectionCut, OnlyRouterKilled))


@at_length
def test_routers_may_be_frozen_and_hear_nothing(endure: Endure) -> None:
    assert_proven(endure(BlackHole, RouterFrozen))


@at_length
def test_routers_may_be_wrong_about_the_time_and_disagree(endure: Endure) -> None:
    assert_proven(endure(ClockJump, TapAway, TwoPolicies))


@at_length
def test_the_broker_may_die_and_have_alarms(endure: Endure) -> None:
    assert_proven(endure(BrokerKilled, MemoryAlarm, DiskAlarm, BrokerRestarted))


@at_length
def test_postgres_may_die_be_slow_and_full(endure: Endure) -> None:
    assert_proven(endure(PostgresKilled, PostgresRestarted, PostgresSlow, PostgresFull))


@at_length
def test_destinations_may_vanish_come_back_and_be_full(endure: Endure) -> None:
    verdict = endure(DestinationDeleted, DestinationRedeclared, DestinationFull)
    assert_proven(verdict)
    assert verdict.diverted


@at_length
def test_a_lost_tier_and_a_lost_day_of_books_are_mended_by_hand(endure: Endure) -> None:
    assert_proven(endure(TierDeleted, PostgresSetBack))

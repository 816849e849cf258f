"""The short form of every fault. `make chaos` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Scenes, assert_proven
from tests.chaos.short import BROKEN, ROUTERS_DIE, SERVICES
from tests.chaos.stage import Stage

# All in one worker: they share one broker, and it is broken at the end.
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def test_routers_may_die_and_be_cut_off(single: Stage) -> None:
    assert_proven(ROUTERS_DIE.verdict(single))


def test_routers_may_be_frozen_and_hear_nothing(scenes: Scenes) -> None:
    assert_proven(scenes["routers hear nothing"].result())


def test_routers_may_be_wrong_about_the_time_and_disagree(scenes: Scenes) -> None:
    assert_proven(scenes["routers disagree"].result())


def test_destinations_may_vanish_come_back_and_be_full(scenes: Scenes) -> None:
    verdict = scenes["destinations vanish"].result()
    assert_proven(verdict)
    assert verdict.diverted


def test_a_lost_tier_and_a_lost_day_of_audit_are_repaired_by_hand(scenes: Scenes) -> None:
    assert_proven(scenes["lost by hand"].result())


def test_a_router_that_acknowledges_before_the_confirm_is_caught(single: Stage) -> None:
    """A judge that never finds anything proves nothing: here it has something to find."""
    verdict = BROKEN.verdict(single)
    assert not verdict.proven
    assert verdict.lost


def test_the_broker_and_postgres_may_die_be_slow_and_full(single: Stage) -> None:
    assert_proven(SERVICES.verdict(single))

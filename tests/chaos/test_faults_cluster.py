"""The short form of what can happen to a cluster of three, all in one scene."""

from __future__ import annotations

import pytest

from tarry.errors import NoBrokerError
from tests.chaos.conftest import assert_proven
from tests.chaos.faults.cluster import DestinationWithoutQuorum, NetworkCut, NodesKilled, RollingRestart
from tests.chaos.short import Group
from tests.chaos.stage import stage
from tests.support.wanted import missing

FAULTS = (NetworkCut, DestinationWithoutQuorum, NodesKilled, RollingRestart)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_nodes_may_die_be_cut_off_and_be_restarted() -> None:
    try:
        with stage("cluster") as made:
            assert_proven(Group(FAULTS).verdict(made))
    except NoBrokerError as problem:
        missing(str(problem), "4.3")

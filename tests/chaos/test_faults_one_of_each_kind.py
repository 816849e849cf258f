"""One scene with a fault of each kind. `make chaos-short` has all faults, `make chaos` has them in full."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import assert_proven
from tests.chaos.short import ONE_OF_EACH_KIND
from tests.chaos.stage import Stage


@pytest.mark.timeout(600)
def test_router_connection_destination_postgres_and_broker_may_fail(single: Stage) -> None:
    assert_proven(ONE_OF_EACH_KIND.verdict(single))

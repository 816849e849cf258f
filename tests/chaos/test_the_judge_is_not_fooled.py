"""A judge that never finds anything proves nothing: here it has something to find."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Endure
from tests.chaos.faults.routers import ConnectionCut

pytestmark = pytest.mark.timeout(300)


def test_a_router_that_acknowledges_before_the_confirm_is_caught(endure: Endure) -> None:
    verdict = endure(ConnectionCut, ConnectionCut, ConnectionCut, ConnectionCut, broken=True, patience=8)
    assert not verdict.proven
    assert verdict.lost

"""A judge that never finds anything proves nothing: here it has something to find."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Endure
from tests.chaos.faults.routers import ConnectionCut

pytestmark = pytest.mark.timeout(600)
CHANCES = 4


def test_a_router_that_acknowledges_before_the_confirm_is_caught(endure: Endure) -> None:
    """A cut loses only what is on its way at that moment: where all of them hit nothing, there is nothing to find."""
    for _ in range(CHANCES):
        verdict = endure(ConnectionCut, ConnectionCut, ConnectionCut, ConnectionCut, broken=True, patience=8)
        if verdict.lost:
            assert not verdict.proven
            return
    pytest.fail("a router that loses messages was not caught")

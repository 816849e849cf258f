"""A breaker that would open waits for a tap that is behind: returns that it has not recorded are not counted yet."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tarry.core.breaker import Breaker, BreakerState, ReturnCounts
from tarry.core.names import Names
from tarry.errors import BrokerError
from tarry.operations.breaker import PolicyBreaker
from tarry.operations.breaker_reconciler import TAP_PATIENCE, BreakerPass, KnownBreakers

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
POLICY = PolicyBreaker("guarded", Breaker(of=10))
ALL_FAIL, FEW_FAIL = ReturnCounts(10, 10), ReturnCounts(100, 10)


class Pass(BreakerPass):
    """Notes the state that a breaker would get, and stores nothing."""

    async def _move(self, label: str, _policy: Any, _row: Any, move: Any, _counts: Any) -> None:
        self.on_change(label, move.state)


class Broker:
    """Its number of copies that wait for the tap."""

    def __init__(self, depth: int | Exception) -> None:
        self._depth = depth

    async def depth(self, queue: str) -> int:
        assert queue == "retry.audit"
        if isinstance(self._depth, Exception):
            raise self._depth
        return self._depth


def look(
    doubts: dict[str, datetime],
    counts: ReturnCounts = ALL_FAIL,
    *,
    depth: int | Exception = 0,
    behind: bool = False,
    after: timedelta = timedelta(0),
) -> list[BreakerState]:
    """The changes of one pass over the breaker of `orders`."""
    changes: list[BreakerState] = []
    context: Any = SimpleNamespace(binder=Broker(depth), names=Names())
    one = Pass(KnownBreakers(context), [], {}, lambda _, state: changes.append(state), doubts, lambda: behind)
    asyncio.run(one._look("orders", POLICY, None, counts, NOW + after))
    return changes


def test_breaker_opens_at_once_while_the_tap_keeps_pace() -> None:
    assert look({}) == [BreakerState.OPEN]


@pytest.mark.parametrize("where", [{"depth": 1}, {"behind": True}])
def test_breaker_waits_while_returns_are_not_counted_and_not_forever(where: dict[str, Any]) -> None:
    doubts: dict[str, datetime] = {}
    assert look(doubts, **where) == []
    assert look(doubts, after=TAP_PATIENCE - timedelta(seconds=1), **where) == []
    assert look(doubts, after=TAP_PATIENCE, **where) == [BreakerState.OPEN]
    assert doubts == {}


def test_breaker_stays_closed_if_the_returns_are_counted_meanwhile() -> None:
    doubts: dict[str, datetime] = {}
    assert look(doubts, behind=True) == []
    assert look(doubts, FEW_FAIL) == []
    assert doubts == {}


def test_breaker_opens_if_the_broker_does_not_answer() -> None:
    assert look({}, depth=BrokerError("away")) == [BreakerState.OPEN]

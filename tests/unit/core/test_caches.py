"""What is worked out for each queue is worked out once, also with ten thousand queues that take turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry.contract import returned
from tarry.core import names
from tarry.core.decide import Failure
from tarry.core.policy import Match
from tarry.topology.load import load, shipped

QUEUES = 10_000


def test_policy_of_a_queue_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = Match.fits

    def counting(match: Match, queue: str, priority: str | None, job_type: str | None) -> bool:
        asked.append(queue)
        return original(match, queue, priority, job_type)

    monkeypatch.setattr(Match, "fits", counting)
    rules = load(shipped()).rules
    for _ in range(2):
        for number in range(QUEUES):
            assert rules.policy_for(Failure(f"queue{number}", 0, 0, None)) is not None
    assert len(asked) <= QUEUES * len(rules.policies)
    assert len(set(asked)) == QUEUES


@pytest.mark.parametrize("cached", [returned._home, returned._item, names._way_home])
def test_caches_hold_ten_thousand_destinations(cached: Callable[..., object]) -> None:
    assert cached.cache_parameters()["maxsize"] > QUEUES  # type: ignore[attr-defined] # of lru_cache

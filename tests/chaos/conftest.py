"""One broker and one PostgreSQL for the short forms of all faults: they are broken on purpose, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from tarry.errors import NoBrokerError
from tests.chaos import short
from tests.chaos.judge import Verdict
from tests.chaos.stage import Kind, Stage, stage
from tests.support.wanted import missing

BY_SERIES: dict[str | None, Kind] = {None: "any", "3.10": "3.10", "4.3": "4.3"}

Scenes = Mapping[str, Future[Verdict]]


@pytest.fixture(scope="session")
def single(series: str | None) -> Iterator[Stage]:
    try:
        with stage(BY_SERIES[series]) as made:
            yield made
    except NoBrokerError as problem:
        missing(str(problem), series)


@pytest.fixture(scope="session")
def scenes(single: Stage) -> Scenes:
    """Those that can go on at the same time, all over."""
    return short.side_by_side(single)


def assert_proven(verdict: Verdict) -> None:
    assert verdict.proven, "\n".join(verdict.complaints())
    assert verdict.returns > short.SIZE.messages / 2

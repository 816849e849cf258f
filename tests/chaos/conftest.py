"""One broker and one PostgreSQL for the short forms of all faults: they are broken on purpose, and nobody else's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tarry.errors import NoBrokerError
from tests.chaos.faults.fault import Fault, Size
from tests.chaos.judge import Verdict
from tests.chaos.run import Run
from tests.chaos.stage import Kind, Stage, stage
from tests.harness.wanted import missing

at_length = pytest.mark.skipif(
    not os.environ.get("TARRY_CHAOS"), reason="some minutes each: `make chaos-short` runs them all"
)

SHORT = Size(400, 120)
SEED = 1
BY_SERIES: dict[str | None, Kind] = {None: "any", "3.10": "3.10", "4.3": "4.3"}

Endure = Callable[..., Verdict]


@pytest.fixture(scope="session")
def single(series: str | None) -> Iterator[Stage]:
    try:
        with stage(BY_SERIES[series]) as made:
            yield made
    except NoBrokerError as problem:
        missing(str(problem), series)


@pytest.fixture
def endure(single: Stage) -> Endure:
    """All these faults, one after the other, in one scene under load."""

    def run(*faults: type[Fault], broken: bool = False, patience: float = 60) -> Verdict:
        able = [fault for fault in (one(short=True) for one in faults) if fault.obstacle(single) is None]
        return Run(single, able, SHORT, SEED, broken=broken, patience=patience).verdict()

    return run


def assert_proven(verdict: Verdict) -> None:
    assert verdict.proven, "\n".join(verdict.complaints())
    assert verdict.returns > SHORT.messages / 2

"""`tarry serve` for the broker of `quick_broker`, whose statistics are at most one second old instead of ten.

Only the wait for statistics and the interval of reading them differ. `test_canary_stage_statistics` runs the
usual service on a usual broker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tarry import embedded
from tarry.amqp import management
from tarry.errors import NoBrokerError
from tests.support.cli import TARRY
from tests.support.installation import Installation
from tests.support.router import Router, spawn_router
from tests.support.wanted import missing

STATISTICS = 3.0
QUICK = [
    "collect_statistics_interval = 250",
    "management.sample_retention_policies.global.minute = 1",
    "management.sample_retention_policies.basic.minute = 1",
    "management.sample_retention_policies.detailed.minute = 1",
]
TICK = "application:set_env(rabbit, quorum_tick_interval, 250)."
"""For queues that are declared afterwards. There is no key for it in the configuration file."""


@contextmanager
def quick_broker(series: str | None, *, quick: bool = True) -> Iterator[embedded.Broker]:
    """A broker of the test's own; with `quick=False`, one with the usual settings."""
    try:
        with embedded.broker(series, extra_config=QUICK if quick else ()) as broker:
            if quick:
                broker.ctl("eval", TICK)
            yield broker
    except NoBrokerError as problem:
        missing(str(problem), series)


@dataclass
class QuickServices:
    """The services of one installation."""

    installation: Installation
    quick: bool = True
    started: list[Router] = field(default_factory=list)

    def start(self) -> Router:
        log = self.installation.folder / f"quick-{len(self.started)}.log"
        command = [sys.executable, "-m", __name__] if self.quick else TARRY
        self.started.append(spawn_router([*command, "serve"], self.installation.environment, log))
        return self.started[-1]

    @property
    def running(self) -> list[Router]:
        return [router for router in self.started if router.running]

    def kill(self) -> None:
        for router in self.running:
            router.kill()


if __name__ == "__main__":
    management.STATISTICS = STATISTICS  # before others take it from there

    from tarry.__main__ import run
    from tarry.operations import canary_stage

    assert canary_stage.STATISTICS == STATISTICS  # type: ignore[attr-defined]
    canary_stage.LOOK_EVERY = 0.1
    canary_stage.READ_EVERY = 0.2
    run()

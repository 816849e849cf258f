"""One run: where it takes place, how big it is, and what it has found so far."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from benchmarks.contenders.protocol import Contender
from benchmarks.router.stage import Stage
from benchmarks.suite.samples import Failure, Sample, Samples

SHORT_S, LONG_S = 2, 1_800
"""A delay that a measurement waits for, and one that nothing comes back from."""


@dataclass
class Bench:
    """Handed to every scenario."""

    on: Stage
    contenders: Sequence[Contender]
    repeats: int
    scale: float
    console: Console
    quick: bool = False
    """Only what the floors of the quick form need."""
    found: Samples = field(default_factory=Samples)
    seconds: dict[str, float] = field(default_factory=dict)

    def size(self, count: int, least: int = 200) -> int:
        return max(least, int(count * self.scale))

    def turn(self, repeat: int) -> list[Contender]:
        """Every contender, each time another one first."""
        start = repeat % len(self.contenders) if self.contenders else 0
        return [*self.contenders[start:], *self.contenders[:start]]

    def note(self, scenario: str, subject: str, repeat: int, **figures: float) -> None:
        for measure, value in figures.items():
            self.found.all.append(Sample(scenario, subject, measure, round(value, 4), repeat))
        told = ", ".join(f"{measure} {value:,.4g}" for measure, value in figures.items())
        self.console.print(f"  [dim]{scenario}[/] {subject}: {told}", highlight=False)

    def fail(self, scenario: str, subject: str, reason: str) -> None:
        self.found.failures.append(Failure(scenario, subject, reason))
        self.console.print(f"  [dim]{scenario}[/] [yellow]{subject}: {reason}[/]", highlight=False)

    def attempt(self, scenario: str, subject: str, work: Callable[[], object]) -> None:
        """A contender that breaks is a row that says so, and does not end the run."""
        if self.found.failure(scenario, subject) is not None:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it was, the others go on
            self.fail(scenario, subject, f"{type(error).__name__}: {error}"[:500])
            self.console.print(traceback.format_exc(limit=-3), style="dim", highlight=False, markup=False)

    def timed(self, scenario: str, work: Callable[[Bench], None], where: str = "") -> None:
        """One scenario; if it breaks as a whole, the others go on."""
        self.console.rule(f"{scenario} {where}")
        started = time.monotonic()
        self.attempt(scenario, "the whole scenario", lambda: work(self))
        self.seconds[scenario] = round(time.monotonic() - started, 1)

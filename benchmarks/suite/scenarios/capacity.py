"""How many retries a second each carries while they come back on time.

The rate is raised step by step until returns are later than `BOUND_MS` at the 99th percentile, or until requests or
returns are still outstanding well after the last request was due: then the backlog grows. One rate between the last
that was carried and the first that was not is tried too. All contenders take turns, step by step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.contenders import tarry
from benchmarks.contenders.marks import ARRIVED, RECORDED
from benchmarks.contenders.protocol import Contender, Job, intervals
from benchmarks.contenders.running import Running, running
from benchmarks.contenders.tarry import Tarry
from benchmarks.suite.bench import SHORT_S, Bench
from benchmarks.suite.processes import cpu_seconds, resident_mib
from benchmarks.suite.samples import CAPACITY_BOUND_MS, percentile
from benchmarks.suite.scenarios.drift import warm_up

NAME = "capacity"
STEP_S = 30.0
RAISE = 1.5
LEAST_RATE = 5
MOST_STEPS = 9
START = 4
"""The first rate is this part of what the contender's size stands for, which is a quarter of a minute of work."""
QUARTER_S = 15

OUTSTANDING_S = 1.5
"""So long after the last request was due, all must be back. Celery's native delays are whole seconds."""
RECORDED_S = 10.0
"""So long after the last return, all must be in the store. The tap rests for up to four seconds in a burst."""
PACE, STARTING_S = 1.1, 2.0
"""A load that took so much longer to send than it should was not that load; its program needs a moment to start."""


@dataclass(frozen=True)
class Step:
    """One rate, and how it went."""

    rate: int
    p99_ms: float
    early_share: float
    cpu_us: float
    """Processor time for each retry, of all that take part."""
    mib: float
    """Resident memory of the contender's own processes."""
    backlog: str = ""
    """What was outstanding at the end, if too much was."""

    @property
    def carried(self) -> bool:
        return not self.backlog and self.p99_ms <= CAPACITY_BOUND_MS


def climb(start: int, measure: Callable[[int], Step]) -> Iterator[Step]:
    """Measures rising rates until one is not carried, and then one between. A first rate that is not carried is
    divided by four until one is.
    """
    rate, carried, failed = start, 0, 0
    for _ in range(MOST_STEPS):
        step = measure(rate)
        yield step
        if step.carried:
            carried = rate
        else:
            failed = rate
        if carried and failed:
            break
        rate = round(rate * RAISE) if step.carried else rate // 4
        if rate < LEAST_RATE:
            return
    between = round((carried * failed) ** 0.5)
    if carried and failed and between not in (carried, failed):
        yield measure(between)


def run(bench: Bench) -> None:
    """All take one step in turn, each time another one first: what else the machine does meets all alike."""
    climbs = [Climb(bench, one, job) for one in bench.contenders for job in jobs(one)]
    for place in itertools.count():
        climbs = [one for one in climbs if not one.is_over]
        if not climbs:
            return
        first = place % len(climbs)
        for one in (*climbs[first:], *climbs[:first]):
            bench.attempt(NAME, one.subject, one.step)


def jobs(one: Contender) -> list[Job]:
    """Who polls is measured at several intervals, so that the one that helps most is found."""
    return [Job(SHORT_S, variant=variant) for variant in intervals(one.slug)] or [Job(SHORT_S)]


def subject(one: Contender, job: Job) -> str:
    return f"{one.slug}, {job.variant}" if job.variant else one.slug


def _note(bench: Bench, name: str, step: Step) -> None:
    figures = {"p99 ms": step.p99_ms, "early": step.early_share, "cpu µs": step.cpu_us, "MiB": step.mib}
    bench.note(NAME, name, 0, **{f"{key} at {step.rate}/s": value for key, value in figures.items()})
    if step.backlog:
        bench.console.print(f"    [yellow]{step.backlog}[/]", highlight=False)


@dataclass
class Climb:
    """The steps of one contender. It is started anew for each."""

    bench: Bench
    contender: Contender
    job: Job
    is_over: bool = False
    _best: int = 0
    _steps: Iterator[Step] = field(init=False)

    def __post_init__(self) -> None:
        start = max(LEAST_RATE, self.contender.size // QUARTER_S // START)
        self._steps = climb(start, self.measure)

    @property
    def subject(self) -> str:
        return subject(self.contender, self.job)

    def step(self) -> None:
        """Takes the next step, or says what was carried if there is none. If it breaks, it takes no more."""
        try:
            found = next(self._steps, None)
        except Exception:
            self.is_over = True
            raise
        if found is None:
            self.is_over = True
            self.bench.note(NAME, self.subject, 0, per_s=self._best)
            return
        self._best = max(self._best, found.rate if found.carried else 0)
        _note(self.bench, self.subject, found)

    def measure(self, rate: int) -> Step:
        with running(self.bench.on, self.contender, self.job) as one:
            one.watch()
            one.start()
            warm_up(one)
            return self._step(one, rate)

    def _step(self, one: Running, rate: int) -> Step:
        seconds = max(2.0, STEP_S * min(self.bench.scale, 1.0))
        before, recorded = one.arrived(), _recorded(one)
        roots, spent = self._roots(one), self._spent(one)
        began = time.monotonic()
        count = one.pace(rate, seconds)
        took = time.monotonic() - began
        backlog = "" if took < seconds * PACE + STARTING_S else f"{count:,} requests took {took:.0f} s to send"
        backlog = _outstanding(one.arrived, before + count, one.job.delay_s + OUTSTANDING_S, "returns") or backlog
        if one.contender.furnished and not backlog:
            backlog = _outstanding(lambda: _recorded(one), recorded + count, RECORDED_S, "records")
        late = sorted((at - due) * 1_000 for at, due in one.marks.read(ARRIVED)[before:] if due)
        return Step(
            rate,
            percentile(late, 0.99) if late else float("inf"),
            sum(1 for one_late in late if one_late < -1) / max(1, len(late)),
            (self._spent(one) - spent) / count * 1e6,
            resident_mib(roots),
            backlog,
        )

    def _roots(self, one: Running) -> list[int]:
        return [process.pid for process in one.processes]

    def _spent(self, one: Running) -> float:
        postgres = [self.bench.on.postgres.pid] if self.bench.on.postgres.pid else []
        return cpu_seconds([*self._roots(one), *self.bench.on.broker_pids, *postgres])


def _recorded(one: Running) -> float:
    return tarry.recorded(one) if isinstance(one.contender, Tarry) else one.marks.count(RECORDED)


def _outstanding(count: Callable[[], float], enough: float, patience: float, what: str) -> str:
    """Waits until there are enough, for so long at most. Returns what is missing then, or nothing."""
    ends = time.monotonic() + patience
    while (found := count()) < enough:
        if time.monotonic() > ends:
            return f"{enough - found:,.0f} {what} were outstanding"
        time.sleep(0.05)
    return ""

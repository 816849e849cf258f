"""One long scene: steady load, a fault each minute, samples every few seconds, and the judge at its heels."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pika.exceptions

from tests.chaos.evidence import quiet, verify
from tests.chaos.faults.fault import Fault
from tests.chaos.judge import Verdict
from tests.chaos.load.plan import Plan
from tests.chaos.scene import Scene, scene, wait
from tests.chaos.soak.faults import HEALING, WHO, drawn
from tests.chaos.soak.rolling import Rolling
from tests.chaos.soak.samples import EVERY, Sample, Trend, sample, trends
from tests.chaos.stage import Stage

PREFIX = "soak"
LOOK = 1.0
"""Seconds between two looks of the judge."""
PATIENCE = 180.0
"""Seconds without any progress after which what is still missing counts as lost."""
VERIFY = 900.0
AWAY = (OSError, pika.exceptions.AMQPError)


@dataclass
class Soak:
    """Made for one run."""

    stage: Stage
    minutes: float
    rate: float
    seed: int
    struck: list[Fault] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def trends(self) -> list[Trend]:
        return trends(self.samples)

    @property
    def proven(self) -> bool:
        return self.verdict.proven and bool(self.trends) and all(one.flat for one in self.trends)

    def run(self, between: float = 60.0) -> None:
        """With a fault every so many seconds."""
        with tempfile.TemporaryDirectory(prefix="tarry-soak-") as folder:
            Path(folder).chmod(0o755)
            with scene(self.stage, Path(folder), self.rate, self._prepare) as made:
                judge = Rolling(Path(folder), plan=Plan(self.seed, PREFIX, light=True))
                self._play(made, judge, between)

    def _prepare(self, made: Scene) -> None:
        made.first_routers = WHO
        for fault in HEALING:
            fault(short=True).prepare(made)

    def _play(self, made: Scene, judge: Rolling, between: float) -> None:
        began = time.monotonic()
        end = began + 60 * self.minutes
        made.start_producer(self.seed, PREFIX, light=True)
        with self._watched(made, judge):
            for number, fault in enumerate(drawn(self.seed), start=1):
                self._until(min(began + number * between, end))
                if time.monotonic() >= end:
                    break
                self.struck.append(fault)
                judge.verdict.allowance += fault.allowance()
                self._strike(made, fault, started=time.monotonic())
        made.stop("producer", patience=60)
        self._settle(made, judge)
        left = quiet(made, deadline=120)
        _look(made, judge)
        judge.digest(all_of_them=True)
        self.verdict = judge.verdict
        self.verdict.unaccounted += [left] if left else []
        self._last_words(made, judge)
        self.verdict.drifts_ms = sorted(self.verdict.drifts_ms)

    def _until(self, moment: float) -> None:
        wait(max(0.0, moment - time.monotonic()))

    def _strike(self, made: Scene, fault: Fault, started: float) -> None:
        fault.inject(made)
        fault.endure(made)
        fault.heal(made)
        print(f"{len(self.struck)} {fault.name} {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201  for who waits

    @contextlib.contextmanager
    def _watched(self, made: Scene, judge: Rolling) -> Iterator[None]:
        """Looks and samples on a thread of their own: a fault may take its time."""
        over = threading.Event()
        problems: list[Exception] = []
        watching = threading.Thread(target=self._watch, args=(made, judge, over, problems), name="watch")
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
        if problems:
            raise problems[0]

    def _watch(self, made: Scene, judge: Rolling, over: threading.Event, problems: list[Exception]) -> None:
        since = next_sample = time.monotonic()
        try:
            while not over.wait(LOOK):
                _look(made, judge)
                if time.monotonic() >= next_sample:
                    self.samples.append(sample(made, since, judge.under_way))
                    next_sample += EVERY
        except Exception as problem:  # noqa: BLE001  raised where the run is waited for
            traceback.print_exc()
            problems.append(problem)

    def _settle(self, made: Scene, judge: Rolling) -> None:
        """Until all have come to their end, or nothing has moved for too long."""
        left, since = -1, time.monotonic()
        while time.monotonic() - since < PATIENCE:
            _look(made, judge)
            if not judge.under_way and judge.planned:
                break
            if judge.under_way != left:
                left, since = judge.under_way, time.monotonic()
            wait(LOOK)

    def _last_words(self, made: Scene, judge: Rolling) -> None:
        content, said = verify(made, patience=VERIFY)
        if not content:
            self.verdict.unaccounted.append(f"`tarry audit verify`: {said}")
        judge.judge_audit(made)


def _look(made: Scene, judge: Rolling) -> None:
    judge.look(made.queues)
    with contextlib.suppress(*AWAY):
        judge.read_review(made)
    judge.digest()


def names(struck: Sequence[Fault]) -> dict[str, int]:
    """How often each fault came."""
    found = [fault.name for fault in struck]
    return {name: found.count(name) for name in dict.fromkeys(found)}

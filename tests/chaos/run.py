"""A scene from beginning to end: load, faults at seeded moments, quiet, verdict."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path

from tests.chaos.evidence import Evidence, quiet, verify
from tests.chaos.faults.fault import Fault, Size
from tests.chaos.judge import Allowance, Verdict, judge
from tests.chaos.load.producer import now_ms
from tests.chaos.scene import Scene, scene, wait
from tests.chaos.stage import Stage

PATIENCE = 120.0
"""Seconds without any progress after which what is still missing counts as lost."""

STORE_SECONDS = 30.0
"""Seconds that the tap has to write down what came last."""

BROKEN = [sys.executable, "-m", "tests.chaos.broken_router", "serve"]


@dataclass
class Run:
    """One scene with its faults."""

    stage: Stage
    faults: Sequence[Fault]
    size: Size
    seed: int
    broken: bool = False
    """With the router that is known to lose messages."""
    patience: float = PATIENCE
    healed_ms: list[int] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    """How long each part of it took."""
    _mark: float = field(default_factory=time.monotonic)
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{self.seed}:{'+'.join(fault.name for fault in self.faults)}")

    def verdict(self) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="tarry-chaos-scene-") as folder:
            Path(folder).chmod(0o755)
            with scene(self.stage, Path(folder), self.size.rate, self._prepare) as made:
                try:
                    return self._play(made, Evidence(Path(folder)))
                except AssertionError as failure:
                    failure.add_note(made.describe())
                    raise

    def _phase(self, name: str) -> None:
        """Over now."""
        now = time.monotonic()
        self.phases[name], self._mark = round(now - self._mark, 1), now

    def _prepare(self, made: Scene) -> None:
        if self.broken:
            made.router_command = list(BROKEN)
        for fault in self.faults:
            fault.prepare(made)

    def _play(self, made: Scene, evidence: Evidence) -> Verdict:
        self._phase("set up")
        made.start_producer(self.seed, f"{self.stage.kind}-{self.faults[0].name if self.faults else 'calm'}")
        for fault in self.faults:
            for _ in range(fault.repeats):
                wait(self.draw.uniform(1.0, 2.0))
                self._strike(made, fault)
        self._enough(made, evidence)
        made.stop("producer", patience=60)
        self._phase("load")
        left = self._settle(made, evidence)
        self._phase("settled")
        content, said = verify(made)
        self._phase("verified")
        found = judge(evidence, self._allowance(), self.healed_ms)
        if left:
            found.unaccounted.append(left)
        if not content and self._allowance().audit:
            found.unaccounted.append(f"`tarry audit verify`: {said}")
        return found

    def _strike(self, made: Scene, fault: Fault) -> None:
        fault.inject(made)
        fault.endure(made)
        fault.heal(made)
        self.healed_ms.append(now_ms())

    def _enough(self, made: Scene, evidence: Evidence) -> None:
        while True:
            evidence.look(made.queues)
            if len(evidence.entries) >= self.size.messages:
                return
            wait(0.2)

    def _settle(self, made: Scene, evidence: Evidence) -> str | None:
        """Until all have come to their end, or nothing has moved for too long; what lies about then is unaccounted."""
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < self.patience:
            evidence.look(made.queues)
            evidence.read_review(made)
            if not evidence.unsettled:
                break
            if (arrived := sum(map(len, evidence.arrivals.values()))) != seen:
                seen, since = arrived, time.monotonic()
            wait(0.3)
        self._phase("arrived")
        for fault in self.faults:
            fault.finish(made)
        left = quiet(made)
        self._last_words(made, evidence)
        return left

    def _last_words(self, made: Scene, evidence: Evidence) -> None:
        """What is in review, and what the tap has yet to write."""
        end = time.monotonic() + min(STORE_SECONDS, self.patience)
        while time.monotonic() < end:
            wait(0.5)
            evidence.look(made.queues)
            evidence.read_review(made)
            evidence.read_store(made)
            if judge(evidence, replace(self._allowance(), duplicates=sys.maxsize), []).proven:
                return

    def _allowance(self) -> Allowance:
        return reduce(add, (fault.allowance() for fault in self.faults), Allowance())

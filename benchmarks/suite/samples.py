"""What was measured: one figure at a time, and what of it can be said. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

BESIDE = "tarry_per_s"
"""Of a contender: what tarry did a moment before or after. The speed of a shared machine changes by the minute."""

HUNDRED_THOUSAND = 100_000
"""So many retries are what costs are told for."""

CAPACITY_BOUND_MS = 250.0
"""Later than this at the 99th percentile is not on time."""

HEADROOM = 1.15
"""How many times a steady load a contender must return end to end, to be asked to carry it."""


@dataclass(frozen=True)
class Sample:
    """One figure of one repeat."""

    scenario: str
    subject: str
    """A contender, or a way to run one."""
    measure: str
    value: float
    repeat: int = 0


@dataclass(frozen=True)
class Failure:
    """A row that says why there is no figure."""

    scenario: str
    subject: str
    reason: str


@dataclass(frozen=True)
class Spread:
    """A figure as it came out over the repeats."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


class Samples:
    """All of one run."""

    def __init__(self, samples: Iterable[Sample] = (), failures: Iterable[Failure] = ()) -> None:
        self.all = list(samples)
        self.failures = list(failures)

    def values(self, scenario: str, subject: str, measure: str) -> dict[int, float]:
        """By repeat."""
        wanted = (scenario, subject, measure)
        return {one.repeat: one.value for one in self.all if (one.scenario, one.subject, one.measure) == wanted}

    def spread(self, scenario: str, subject: str, measure: str) -> Spread | None:
        found = list(self.values(scenario, subject, measure).values())
        return Spread.of(found) if found else None

    def ratio(self, scenario: str, over: tuple[str, str], under: tuple[str, str]) -> Spread | None:
        """Of neighbours only: repeat by repeat, each (subject, measure) of the same scenario."""
        top, bottom = self.values(scenario, *over), self.values(scenario, *under)
        both = [top[repeat] / bottom[repeat] for repeat in top if bottom.get(repeat)]
        return Spread.of(both) if both else None

    def times(self, scenario: str, other: str) -> Spread | None:
        """How many times as fast as another one tarry is: as measured right beside it, where that was done."""
        beside = self.ratio(scenario, (other, BESIDE), (other, "per_s"))
        return beside or self.ratio(scenario, ("tarry", "per_s"), (other, "per_s"))

    def subjects(self, scenario: str) -> list[str]:
        """In the order in which they first came."""
        seen = [one.subject for one in self.all if one.scenario == scenario]
        seen += [one.subject for one in self.failures if one.scenario == scenario]
        return list(dict.fromkeys(seen))

    def failure(self, scenario: str, subject: str) -> str | None:
        return next((one.reason for one in self.failures if (one.scenario, one.subject) == (scenario, subject)), None)

    def carries(self, subject: str, per_second: int) -> bool:
        """Whether it returns enough, end to end, to be asked for a steady load; yes where nobody knows."""
        sustained = self.spread("end to end", subject.partition(",")[0], "per_s")
        return sustained is None or sustained.median >= per_second * HEADROOM

    def capacity(self, slug: str) -> Sample | None:
        """The most that a contender carried on time, in whichever way to run it that was best."""
        ways = [one for one in self.subjects("capacity") if one.partition(",")[0] == slug]
        found = [
            one for one in self.all if one.scenario == "capacity" and one.subject in ways and one.measure == "per_s"
        ]
        return max(found, key=lambda one: one.value, default=None)

    def as_json(self) -> dict[str, Any]:
        return {"samples": [asdict(one) for one in self.all], "failures": [asdict(one) for one in self.failures]}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Samples:
        return cls([Sample(**one) for one in found["samples"]], [Failure(**one) for one in found["failures"]])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that so much of them do not exceed; of a sorted sequence."""
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

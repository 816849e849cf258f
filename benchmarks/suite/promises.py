"""What the run must show, and whether it did. Pure: from samples to verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.suite.samples import Samples, Spread

TARRY = "tarry"
END_TO_END, SCHEDULING, DRIFT, DRAIN, BACKLOG = "end to end", "scheduling", "drift", "drain", "backlog"
CAPACITY = "capacity"
CEILING = "confirmed publishing"
THREE_TIMES = ("celery-native", "taskiq", "aio-pika", "polling-usual")
"""Whatever schedules through RabbitMQ in Python with delays kept by the broker; and the usual poller."""

DURABLE_PEERS = ("celery-native", "taskiq", "aio-pika", "polling-usual", "procrastinate")
"""Whatever in Python keeps a waiting retry through the loss of every process but the broker or Postgres."""

NOT_BEHIND = "polling-tuned"

NOISE_MS = 15.0
"""Two drifts that differ by less are the same, on two cores."""


@dataclass(frozen=True)
class Promise:
    """One of them."""

    text: str
    found: Spread | None
    floor: float
    about: tuple[str, str] = ("", "")
    """The scenario, and what tarry is held against there."""
    at_most: bool = False
    unit: str = ""

    @property
    def kept(self) -> bool | None:
        """None where it was not measured."""
        if self.found is None:
            return None
        return self.found.median <= self.floor if self.at_most else self.found.median >= self.floor

    @property
    def verdict(self) -> str:
        return {True: "kept", False: "broken", None: "not measured"}[self.kept]


def promises(found: Samples) -> list[Promise]:
    """Of the whole run."""
    return [*_capacities(found), *_rates(found), *_drifts(found), *_drains(found, 0.5), *_backlog(found)]


def quick_promises(found: Samples) -> list[Promise]:
    """A guard against regressions: floors a good way below what a quiet machine shows."""
    return [
        _end_to_end(found, "celery-native", 2.0),
        _end_to_end(found, "aio-pika", 1.5),
        _end_to_end(found, NOT_BEHIND, 0.15),
        _of_ceiling(found, 0.15),
        *_drains(found, 0.35),
        _p99(found, TARRY, 200, 100.0),
    ]


def _capacities(found: Samples) -> Iterator[Promise]:
    for other in DURABLE_PEERS:
        yield _capacity(found, other, 3.0)
    yield _capacity(found, NOT_BEHIND, 1.0)


def _capacity(found: Samples, other: str, floor: float) -> Promise:
    ours, theirs = found.capacity(TARRY), found.capacity(other)
    ratio = Spread.of([ours.value / theirs.value]) if ours and theirs and theirs.value else None
    return Promise(f"capacity at bounded drift, times that of {other}", ratio, floor, (CAPACITY, other))


def _rates(found: Samples) -> Iterator[Promise]:
    for other in THREE_TIMES:
        yield _end_to_end(found, other, 3.0)
    yield _end_to_end(found, NOT_BEHIND, 1.0)
    yield _of_ceiling(found, 0.3)


def _end_to_end(found: Samples, other: str, floor: float) -> Promise:
    ratio = found.times(END_TO_END, other)
    return Promise(f"audited end-to-end throughput, times that of {other}", ratio, floor, (END_TO_END, other))


def _of_ceiling(found: Samples, floor: float) -> Promise:
    ratio = found.ratio(SCHEDULING, (TARRY, "per_s"), (CEILING, "per_s"))
    text = "scheduling, as a fraction of the broker's confirmed publishing"
    return Promise(text, ratio, floor, (SCHEDULING, CEILING))


def _drifts(found: Samples) -> Iterator[Promise]:
    yield _p99(found, TARRY, 1_000, 60.0)
    yield _p99(found, "tarry, ladder", 1_000, 200.0)


def _p99(found: Samples, subject: str, per_second: int, most: float) -> Promise:
    late = found.spread(DRIFT, subject, f"p99 at {per_second}/s")
    text = f"drift p99 at {per_second:,}/s, {subject}"
    return Promise(text, late, most, (DRIFT, subject), at_most=True, unit="ms")


def _drains(found: Samples, floor: float) -> Iterator[Promise]:
    ratio = found.ratio(DRAIN, ("whole way, tap read", "per_s"), ("bare tier", "per_s"))
    text = "20,000 due at once, as a fraction of the bare tier's own drain"
    yield Promise(text, ratio, floor, (DRAIN, "bare tier"))


def _backlog(found: Samples) -> Iterator[Promise]:
    subjects = found.subjects(BACKLOG)
    if len(subjects) < 2:
        return
    empty, full = subjects[0], subjects[-1]
    ratio = found.ratio(BACKLOG, (full, "per_s"), (empty, "per_s"))
    about = (BACKLOG, empty)
    yield Promise(f"throughput with {full}, as a fraction of that with none", ratio, 0.8, about)
    here, there = (found.spread(BACKLOG, one, "p99 at 200/s") for one in (full, empty))
    more = here.median - there.median if here and there else None
    spread = None if more is None else Spread.of([more])
    text = f"drift p99 at 200/s with {full}, more than with none"
    yield Promise(text, spread, NOISE_MS, about, at_most=True, unit="ms")

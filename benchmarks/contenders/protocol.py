"""What a contender is: programs that send requests, programs that work, and what it can and cannot do."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.contenders import marks
from benchmarks.router.stage import Space

BENCH_PYTHON = Path(".tarry/bench-venv/bin/python")
"""Other people's packages live apart from tarry's."""

Command = Sequence[str]


@dataclass(frozen=True)
class Facts:
    """What a reader has to know before comparing figures. "yes", or what is missing."""

    durable: str
    """Does a waiting retry survive the loss of every process but the broker (or Postgres)?"""
    delays: str
    """Which delays are possible."""
    same_queue: str
    """Does the message come back to the queue it failed in, as it was?"""
    audit: str
    """Is there a record of each step?"""


@dataclass(frozen=True)
class Job:
    """One measurement: every retry waits this long, with a body of so many bytes."""

    delay_s: int
    body: int = 512
    workers: int = 1
    """Processes of the router, where that is a choice."""
    variant: str = ""
    """A way to run it that only this contender knows."""


class Contender(Protocol):
    """Everything is a process, so that everybody pays for what they are."""

    slug: str
    name: str
    size: int
    """Requests that keep it busy for a quarter of a minute on two cores: about equally long for all."""
    facts: Facts
    settings: Mapping[str, str]
    broker: bool
    """Its delays are held by or go through RabbitMQ."""
    furnished: bool
    """It needs tarry's topology and tables in its space."""
    due_header: str | None
    """Where its messages say when they were due, for the one who watches the origin queue; None if it tells itself."""

    def versions(self) -> dict[str, str]: ...
    def prepare(self, space: Space, job: Job) -> None: ...
    def send(self, space: Space, job: Job, count: int, per_second: int) -> Command:
        """A program that sends so many requests; steadily, unless `per_second` is 0."""

    def work(self, space: Space, job: Job) -> Sequence[Command]: ...
    def environment(self, space: Space, job: Job, place: int) -> dict[str, str]:
        """For the process at that place in `work`."""


POLLING = ("polling-tuned", "polling-usual", "procrastinate")
"""Contenders that look for what is due at intervals."""

INTERVALS = {"every 50 ms": 0.05, "every 200 ms": 0.2}
"""Ways to run those where lateness is bounded: at their own intervals, they return everything too late."""


def intervals(slug: str) -> list[str]:
    return list(INTERVALS) if slug in POLLING else []


def poll_environment(job: Job) -> dict[str, str]:
    """The interval, for the programs in `apps` that poll; nothing if the job does not name one."""
    return {"BENCH_POLL": str(INTERVALS[job.variant])} if job.variant in INTERVALS else {}


def own_module(name: str, *arguments: object) -> Command:
    return [sys.executable, "-m", f"benchmarks.contenders.apps.{name}", *map(str, arguments)]


def bench_python() -> str:
    if not BENCH_PYTHON.exists():
        raise RuntimeError(f"{BENCH_PYTHON} is missing: `make bench` makes it")
    return str(BENCH_PYTHON.absolute())


def bench_module(name: str, *arguments: object) -> Command:
    return [bench_python(), "-m", f"benchmarks.contenders.apps.{name}", *map(str, arguments)]


def plain_environment(space: Space, job: Job) -> dict[str, str]:
    """What the programs in `apps` read."""
    return {
        "BENCH_URL": space.address.url,
        "BENCH_DSN": space.dsn,
        "BENCH_DELAY": str(job.delay_s),
        marks.FOLDER: str(space.folder),
        "PYTHONPATH": str(Path.cwd()),
    }

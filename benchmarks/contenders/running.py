"""One contender at work in one space: its processes, and what has come of its requests so far."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from benchmarks.contenders.marks import ARRIVED, SCHEDULED, Marks
from benchmarks.contenders.protocol import Command, Contender, Job, own_module, plain_environment
from benchmarks.router.stage import ORIGIN, Space, Stage

LADDER, ASKED = "ladder", "asked-due-ms"
"""Requests for delays that no tier has say themselves when they want to be back: what is rounded up counts as late."""

LOOK_EVERY = 0.1
GOODBYE = 15


class BrokenError(RuntimeError):
    """A contender did not do what it was asked to; the text is for the report."""


@dataclass
class Running:
    """Filled, then started, then watched."""

    contender: Contender
    space: Space
    job: Job
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    watcher: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0

    @property
    def marks(self) -> Marks:
        return Marks(self.space.folder)

    def fill(self, count: int) -> None:
        """Requests that wait before anybody works on them."""
        self._complete(self.contender.send(self.space, self.job, count, 0))

    def pace(self, per_second: int, seconds: float) -> int:
        """A steady load on what runs; how many that were."""
        count = int(per_second * seconds)
        self._complete(self.contender.send(self.space, self.job, count, per_second))
        return count

    def watch(self) -> None:
        """Somebody consumes the origin queue, for contenders that bring messages back to it."""
        header = ASKED if self.job.variant == LADDER else self.contender.due_header
        if header is not None and self.watcher is None:
            self.watcher = self._open(own_module("watcher", self.space.address.url, ORIGIN, header), 0, "watcher")

    def start(self) -> None:
        self.started_at = time.time()
        for place, command in enumerate(self.contender.work(self.space, self.job)):
            self.processes.append(self._open(command, place, f"work-{place}"))

    def wait(
        self, count: Callable[[], float], enough: float, patience: float, every: float = LOOK_EVERY
    ) -> list[tuple[float, float]]:
        """Until so many; the moments and counts on the way. Progress, not time, is what must not end."""
        seen = [(time.time(), count())]
        moved_at, most = time.time(), seen[0][1]
        while seen[-1][1] < enough:
            self.check()
            time.sleep(every)
            seen.append((time.time(), count()))
            if seen[-1][1] > most:
                moved_at, most = time.time(), seen[-1][1]
            if time.time() - moved_at > patience:
                raise BrokenError(f"{most:g} of {enough:g}, then nothing more for {patience:g} s")
        return seen

    def check(self) -> None:
        for place, process in enumerate(self.processes):
            if process.poll() is not None:
                raise BrokenError(f"its process ended with code {process.returncode}: {self._said(f'work-{place}')}")

    def arrived(self) -> int:
        return self.marks.count(ARRIVED)

    def scheduled(self) -> int:
        return self.marks.count(SCHEDULED)

    def stop(self) -> None:
        self.stop_work()
        if self.watcher is not None:
            _end_all([self.watcher])
            self.watcher = None

    def stop_work(self) -> None:
        _end_all(self.processes)
        self.processes = []

    def _environment(self, place: int) -> dict[str, str]:
        own = self.contender.environment(self.space, self.job, place)
        return os.environ | plain_environment(self.space, self.job) | own

    def _complete(self, command: Command) -> None:
        done = subprocess.run(
            command, env=self._environment(0), capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise BrokenError(f"its requests could not be sent: {_end(done.stderr)}")

    def _open(self, command: Command, place: int, name: str) -> subprocess.Popen[bytes]:
        with self._log(name) as log:
            return subprocess.Popen(command, env=self._environment(place), stdout=log, stderr=log)

    def _log(self, name: str) -> IO[bytes]:
        return (self.space.folder / f"{name}.log").open("wb")

    def _said(self, name: str) -> str:
        return _end((self.space.folder / f"{name}.log").read_text(errors="replace"))


def _end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end(text: str, lines: int = 4) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-600:]


@contextlib.contextmanager
def running(on: Stage, contender: Contender, job: Job) -> Iterator[Running]:
    """A space of its own, with what the contender needs in it; nothing runs yet, and nothing runs afterwards."""
    with on.space(f"{job.delay_s}s", bare=not contender.furnished) as space:
        contender.prepare(space, job)
        one = Running(contender, space, job)
        try:
            yield one
        finally:
            one.stop()


def rate(moments: Sequence[float]) -> float:
    """Per second, from the first to the last."""
    if len(moments) < 2 or moments[-1] <= moments[0]:
        raise BrokenError(f"too few moments for a rate: {len(moments)}")
    return (len(moments) - 1) / (moments[-1] - moments[0])

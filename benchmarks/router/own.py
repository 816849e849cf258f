"""The service itself, as a process, watched through its own metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.router.load import fill
from benchmarks.router.stage import Space

LOOK_EVERY = 0.3
PATIENCE = 300.0


@dataclass
class Serving:
    """A running `tarry serve`."""

    process: subprocess.Popen[str]
    log: IO[str]
    port: int

    def metric(self, name: str) -> float:
        """The sum over all labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(map(float, re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)))

    def processor_s(self) -> float:
        """Seconds of processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self) -> float:
        """Resident memory in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def peak_rss(self) -> float:
        """The most resident memory that it ever had, in MiB."""
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        assert found
        return int(found[1]) / 1024

    def wait_scheduled(self, count: float) -> list[tuple[float, float]]:
        """Until so many were scheduled; the moments and counts seen on the way."""
        seen = [(time.perf_counter(), self.metric("retries_scheduled_total"))]
        while seen[-1][1] < count:
            if time.perf_counter() - seen[0][0] > PATIENCE or self.process.poll() is not None:
                raise RuntimeError(f"the service scheduled {seen[-1][1]:g} of {count:g}, then no more")
            time.sleep(LOOK_EVERY)
            seen.append((time.perf_counter(), self.metric("retries_scheduled_total")))
        return seen


@contextlib.contextmanager
def serving(space: Space, **settings: str) -> Iterator[Serving]:
    """Its log goes to a file, as it would in earnest."""
    log_path = space.folder / "serve.log"
    with log_path.open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tarry", "serve"],
            env=os.environ | space.environment | {"HTTP_PORT": "0"} | settings,
            stderr=log,
            text=True,
        )
        try:
            yield Serving(process, log, _port(process, log_path))
        finally:
            process.terminate()
            process.wait(15)


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """The first line of its log says it."""
    for _ in range(300):
        lines = log.read_text().splitlines()
        if lines and '"http"' in lines[0]:
            return int(json.loads(lines[0])["http"].rpartition(":")[2])
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        time.sleep(0.05)
    raise RuntimeError("the service did not say where it listens")


def router_rate(space: Space, count: int) -> float:
    """Requests per second out of a full queue, the ramp at the beginning left out."""
    asyncio.run(fill(space, count))
    with serving(space) as service:
        seen = [(at, done) for at, done in service.wait_scheduled(count) if done > 0]
    (start, before), (end, after) = seen[0], seen[-1]
    return (after - before) / (end - start)


def memory(space: Space, count: int) -> tuple[float, float]:
    """Resident MiB after the first quarter and after the whole."""
    with serving(space) as service:
        found = []
        for quarter in range(1, 5):
            asyncio.run(fill(space, count // 4))
            service.wait_scheduled(count // 4 * quarter)
            found.append(service.rss())
    return found[0], found[-1]

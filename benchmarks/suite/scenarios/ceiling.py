"""What the broker itself can do: confirmed publishing into a quorum queue, and the dead-letter drain of one tier."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.suite.bench import LONG_S, Bench
from benchmarks.suite.drains import BARE, drain

NAME = "ceiling"
TITLE = "The broker's own ceiling"
PUBLISH = "confirmed publishing"
COUNT = 40_000


def run(bench: Bench) -> None:
    for repeat in range(bench.repeats):
        bench.attempt(NAME, PUBLISH, lambda repeat=repeat: publish(bench, repeat))  # type: ignore[misc]


def publish(bench: Bench, repeat: int) -> None:
    with bench.on.space(f"{LONG_S}s", bare=True) as space:
        count = bench.size(COUNT, 2_000)
        command = [sys.executable, "-m", "benchmarks.router.raw", space.address.url, str(count)]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300, check=True)
        bench.note(NAME, PUBLISH, repeat, per_s=float(json.loads(done.stdout.splitlines()[-1])["rate"]))

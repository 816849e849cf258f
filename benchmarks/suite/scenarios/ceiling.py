"""What the broker itself can do: confirmed publishing into a quorum queue. The drain of one tier is in `drain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.suite.bench import LONG_S, Bench

PUBLISH = "confirmed publishing"
COUNT = 40_000


def publish(bench: Bench) -> float:
    """Messages per second."""
    with bench.on.space(f"{LONG_S}s", bare=True) as space:
        command = [sys.executable, "-m", "benchmarks.router.raw", space.address.url, str(bench.size(COUNT, 2_000))]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["rate"])

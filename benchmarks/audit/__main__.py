"""What the audit costs: the router with and without it, taking turns; bytes for each retry; rows a second.

python -m benchmarks.audit [--quick] [--broker SERIES]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.audit.storage import Cost, cost
from benchmarks.router.load import fill
from benchmarks.router.own import Serving
from benchmarks.router.stage import Space, stage

AUDITED = (sys.executable, "-m", "tarry", "serve")
UNAUDITED = (sys.executable, "-m", "benchmarks.audit.unaudited")
LONG = "30m"
"""A delay that nothing comes back from during a measurement."""

SHARE = 0.5
"""The audited router keeps at least this much of the other's speed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, fewer messages")
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    arguments = parser.parse_args()
    rounds, count = (1, 10_000) if arguments.quick else (3, 30_000)
    rates: dict[str, list[float]] = {"audited": [], "unaudited": []}
    with stage(arguments.broker) as on:
        for _ in range(rounds):
            for name, command in (("unaudited", UNAUDITED), ("audited", AUDITED)):
                with on.space(LONG) as space:
                    rates[name].append(round(rate(space, command, count)))
        with on.space(LONG) as space:
            found = asyncio.run(cost(space.dsn, count))
        version = on.broker.version
    shares = [one / other for one, other in zip(rates["audited"], rates["unaudited"], strict=True)]
    print(json.dumps(result(version, rates, shares, found), indent=2))
    return 0 if statistics.median(shares) >= SHARE else 1


def result(version: str, rates: dict[str, list[float]], shares: list[float], found: Cost) -> dict[str, object]:
    return {
        "broker": version,
        "rates_per_s": rates,
        "share": [round(share, 2) for share in shares],
        "kept": statistics.median(shares) >= SHARE,
        "storage": found.report(),
    }


def rate(space: Space, command: Sequence[str], count: int) -> float:
    """Requests per second out of a full queue, the ramp at the beginning left out."""
    asyncio.run(fill(space, count))
    path = space.folder / "serve.log"
    with path.open("w+") as log:
        process = subprocess.Popen(
            command, env=os.environ | space.environment | {"HTTP_PORT": "0"}, stderr=log, text=True
        )
        try:
            while '"http"' not in path.read_text():
                if process.poll() is not None:
                    raise RuntimeError(path.read_text())
                time.sleep(0.02)
            port = int(json.loads(path.read_text().splitlines()[0])["http"].rpartition(":")[2])
            seen = [one for one in Serving(process, log, port).wait_scheduled(count) if one[1] > 0]
        finally:
            process.terminate()
            process.wait(15)
    (start, before), (end, after) = seen[0], seen[-1]
    return (after - before) / (end - start)


if __name__ == "__main__":
    sys.exit(main())

"""What many destinations cost: the router with ten thousand of them against the same router with ten, taking turns.

The destinations are classic queues that are not attached. In each round a router starts on a full queue. The first
requests go to every destination once, so that the router sees each for the first time; the speed is measured over the
rest, which go round all of them.

python -m benchmarks.destinations [--destinations N] [--rounds N] [--quick] [--broker SERIES] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.router.load import fill
from benchmarks.router.own import Serving, serving
from benchmarks.router.stage import Space, Stage, stage
from tarry.embedded import management

LONG = "30m"
"""A delay that nothing comes back from during a measurement."""

FEW, MANY = 10, 10_000
MEASURED, MEASURED_QUICK = 30_000, 10_000

MOST_START_S, MOST_MIB, LEAST_SHARE = 10.0, 400.0, 0.8
"""The promises: from the start of the process until it is ready; the most memory it ever had; and of the speed with
`FEW` destinations, in the median of the rounds."""

DECLARE_S = 600


@dataclass(frozen=True)
class Run:
    """One router."""

    start_s: float
    """From the start of the process until it is ready."""
    first_per_s: float | None
    """Requests a second while each destination is seen for the first time; None if that was over at the first look."""
    per_s: float
    """Requests a second after that."""
    peak_mib: float
    metrics: int
    """Lines of a scrape."""


def main() -> int:
    asked = _arguments()
    few, many = list[Run](), list[Run]()
    began = time.monotonic()
    with stage(asked.broker) as on, on.space(LONG) as small, on.space(LONG) as large:
        for space, number in ((small, FEW), (large, asked.destinations)):
            declare(on, space, names(number))
        declared_s = time.monotonic() - began
        for place in range(asked.rounds):
            turn = [(small, FEW, few), (large, asked.destinations, many)]
            for space, number, found in turn[:: 1 if place % 2 == 0 else -1]:
                found.append(run(space, number, asked.destinations, asked.measured))
        version = on.broker.version
    shown, kept = judged(few, many)
    shown = {"broker": version, "destinations": asked.destinations, "declared_s": round(declared_s, 1), **shown}
    text = json.dumps(shown | {"took_s": round(time.monotonic() - began), "kept": kept}, indent=2)
    print(text)
    if asked.json:
        Path(asked.json).write_text(text + "\n", encoding="utf-8")
    return 0 if all(kept.values()) else 1


def names(number: int) -> list[str]:
    return [f"bench.destination-{place}" for place in range(number)]


def declare(on: Stage, space: Space, queues: Sequence[str]) -> None:
    about = {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "classic"}}
    body = {"queues": [{"name": name, **about} for name in queues]}
    path = f"definitions/{space.address.vhost}"
    management.request(on.broker.management_url, path, method="POST", body=body, timeout=DECLARE_S)


def run(space: Space, destinations: int, first: int, measured: int) -> Run:
    """`first` requests, which include one for each destination, and then as many as are measured."""
    asyncio.run(fill(space, first + measured, origins=itertools.cycle(names(destinations))))
    started = time.perf_counter()
    with serving(space) as service:
        start_s = wait_ready(service) - started
        seen = service.wait_scheduled(first + measured)
        begins = next(one for one in seen if one[1] >= first)
        scrape = read(service, "/metrics").count("\n")
        first_per_s = rate(seen[0], begins) if begins is not seen[0] else None
        return Run(start_s, first_per_s, rate(begins, seen[-1]), service.peak_rss(), scrape)


def rate(start: tuple[float, float], end: tuple[float, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def wait_ready(service: Serving) -> float:
    while True:
        try:
            read(service, "/readyz")
        except OSError:  # 503 is one as well
            if service.process.poll() is not None:
                raise RuntimeError("the service ended") from None
            time.sleep(0.05)
        else:
            return time.perf_counter()


def read(service: Serving, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def judged(few: Sequence[Run], many: Sequence[Run]) -> tuple[dict[str, object], dict[str, bool]]:
    """What is shown, and which promises were kept. Pure."""
    shares = [one.per_s / other.per_s for one, other in zip(many, few, strict=True)]
    slowest, peak, share = (
        max(one.start_s for one in many),
        max(one.peak_mib for one in many),
        statistics.median(shares),
    )
    shown: dict[str, object] = {
        "few": [_rounded(one) for one in few],
        "many": [_rounded(one) for one in many],
        "slowest_start_s": round(slowest, 1),
        "peak_mib": round(peak),
        "shares": [round(one, 2) for one in shares],
        "share": round(share, 2),
    }
    kept = {"start": slowest < MOST_START_S, "memory": peak < MOST_MIB, "speed": share >= LEAST_SHARE}
    return shown, kept


def _rounded(one: Run) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 1) for name, value in asdict(one).items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.destinations", description=__doc__)
    parser.add_argument("--destinations", type=int, default=MANY, metavar="N", help=f"default {MANY:,}")
    parser.add_argument("--rounds", type=int, metavar="N", help="default 3, quick 1")
    parser.add_argument("--quick", action="store_true", help="one round, fewer messages")
    parser.add_argument("--broker", default="4.3", metavar="SERIES", help="default 4.3")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or (1 if asked.quick else 3)
    asked.measured = MEASURED_QUICK if asked.quick else MEASURED
    return asked


if __name__ == "__main__":
    sys.exit(main())

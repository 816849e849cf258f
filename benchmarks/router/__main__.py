"""make bench-router: the audited router against what the client can do at best, and against the same loop on aio-pika.

All in one run, taking turns, because only ratios of neighbours mean anything on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.router.drift import drift
from benchmarks.router.load import fill
from benchmarks.router.own import memory, router_rate
from benchmarks.router.stage import Space, Stage, stage

LONG = "30m"
"""A delay that nothing comes back from during a measurement."""

SHORT = "2s"

OF_RAW = 0.25
OF_AIO_PIKA = 2.0
DRIFT_P99_MS = 100
GROWTH = 1.1
"""The most that memory may grow from the first quarter of the messages to the last."""


@dataclass(frozen=True)
class Sizes:
    """How much of each; the quick ones are for a first look and prove nothing about memory."""

    rounds: int = 5
    router: int = 30_000
    raw: int = 60_000
    aio: int = 8_000
    memory: int = 200_000
    steady_s: float = 60
    burst_s: float = 10


QUICK = Sizes(rounds=1, router=10_000, raw=10_000, aio=2_500, memory=0, steady_s=8, burst_s=3)


def main() -> int:
    arguments = _arguments()
    sizes = QUICK if arguments.quick else Sizes()
    with stage(arguments.broker) as on:
        rates = measure_rates(on, sizes)
        drifts = {
            "50/s": [_in_space(on, SHORT, lambda space: drift(space, 50, sizes.steady_s))],
            "200/s": [
                _in_space(on, SHORT, lambda space: drift(space, 200, sizes.burst_s)) for _ in range(sizes.rounds)
            ],
        }
        grown = _in_space(on, LONG, lambda space: memory(space, sizes.memory)) if sizes.memory else None
        version = on.broker.version
    promises = judge(rates, grown, {name: [one.p99 for one in found] for name, found in drifts.items()})
    result = {
        "broker": version,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "quick": arguments.quick,
        "rates_per_s": rates,
        "drift_ms": {name: [asdict(one) for one in found] for name, found in drifts.items()},
        "memory_mib": grown,
        "promises": promises,
    }
    show(result)
    text = json.dumps(result, indent=2)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path from the command line
            file.write(text + "\n")
    else:
        print(text)
    return 0 if all(promise["kept"] for promise in promises) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute: one round, fewer messages, no memory")
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    parser.add_argument("--json", metavar="FILE", help="write the result there instead of printing it")
    return parser.parse_args()


def measure_rates(on: Stage, sizes: Sizes) -> dict[str, list[float]]:
    """Messages per second, one figure for each round."""
    rates: dict[str, list[float]] = {"router": [], "raw": [], "aio-pika": [], "aio-pika, no audit": []}
    for round_ in range(sizes.rounds):
        print(f"round {round_ + 1} of {sizes.rounds}", file=sys.stderr)
        rates["raw"].append(_in_space(on, LONG, lambda space: _child("raw", space, space.address.url, sizes.raw)))
        rates["router"].append(_in_space(on, LONG, lambda space: router_rate(space, sizes.router)))
        rates["aio-pika"].append(_in_space(on, LONG, lambda space: _aio(space, sizes.aio)))
        rates["aio-pika, no audit"].append(_in_space(on, LONG, lambda space: _aio(space, sizes.aio, "--no-audit")))
    return rates


def _in_space(on: Stage, delay: str, work: Callable[[Space], Any]) -> Any:
    with on.space(delay) as space:
        return work(space)


def _aio(space: Space, count: int, *flags: str) -> float:
    asyncio.run(fill(space, count))
    return _child("on_aio_pika", space, count, *flags)


def _child(module: str, space: Space, *arguments: object) -> float:
    """A process of its own for each, as a router would have."""
    command = [sys.executable, "-m", f"benchmarks.router.{module}", *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | space.environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1])["rate"])


def judge(
    rates: dict[str, list[float]], grown: tuple[float, float] | None, p99: dict[str, list[int]]
) -> list[dict[str, Any]]:
    """Each promise, what was found, and whether it was kept."""
    router = rates["router"]
    of_raw = [one / other for one, other in zip(router, rates["raw"], strict=True)]
    of_aio = [one / other for one, other in zip(router, rates["aio-pika"], strict=True)]
    found = [
        _promise(f"at least {OF_RAW} of raw confirmed publishing", of_raw, statistics.median(of_raw) >= OF_RAW),
        _promise(
            f"at least {OF_AIO_PIKA:g} times the same on aio-pika", of_aio, statistics.median(of_aio) >= OF_AIO_PIKA
        ),
    ]
    found += [
        _promise(f"drift p99 under {DRIFT_P99_MS} ms at {load}", late, statistics.median(late) < DRIFT_P99_MS)
        for load, late in p99.items()
    ]
    if grown is not None:
        ratio = grown[1] / grown[0]
        found.append(_promise(f"memory grows by less than {GROWTH - 1:.0%}", [ratio], ratio < GROWTH))
    return found


def _promise(text: str, values: Sequence[float], kept: bool) -> dict[str, Any]:  # noqa: FBT001
    return {
        "promise": text,
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
        "kept": kept,
    }


def show(result: dict[str, Any]) -> None:
    console = Console()
    rates = Table(
        "messages per second", "median", "least", "most", title=f"RabbitMQ {result['broker']}, 512-byte bodies"
    )
    for name, values in result["rates_per_s"].items():
        rates.add_row(name, *(f"{number:,.0f}" for number in (statistics.median(values), min(values), max(values))))
    promises = Table("promise", "median", "least", "most", "", title="promises")
    for one in result["promises"]:
        mark = "[green]kept[/]" if one["kept"] else "[red]broken[/]"
        promises.add_row(one["promise"], f"{one['median']:g}", f"{one['least']:g}", f"{one['most']:g}", mark)
    console.print(rates, promises)


if __name__ == "__main__":
    sys.exit(main())

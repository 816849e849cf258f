"""What eligibility costs: the router with and without it, taking turns. Every message has a device of its own, so that
no answer comes from the cache, and the endpoint is a process on the same machine.

python -m benchmarks.eligibility [--quick] [--broker SERIES]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.router.load import HEADERS, request
from benchmarks.router.own import serving
from benchmarks.router.stage import Space, stage
from tarry.amqp.field_tables import entry
from tarry.amqp.publisher import Message, Publisher, PublishOutcome

SERVER = Path(__file__).parents[2] / "examples" / "eligibility" / "server.py"
LONG = "30m"
"""A delay that nothing comes back from during a measurement."""

SHARE = 0.7
"""The router with the check keeps at least this much of the speed of the one without."""

VARIABLE = "BENCH_ELIGIBILITY_URL"
RULE = f'eligibility = {{ url_env = "{VARIABLE}", key = "device_id", on_error = "skip" }}\n'
"""With `skip`, a request without an answer would be missing from what was scheduled."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eligibility", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, fewer messages")
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    arguments = parser.parse_args()
    rounds, count = (1, 10_000) if arguments.quick else (5, 30_000)
    rates: dict[str, list[float]] = {"without": [], "with": []}
    with stage(arguments.broker) as on, endpoint() as url:
        for _ in range(rounds):
            for name, variables in (("without", {}), ("with", {VARIABLE: url})):
                with on.space(LONG) as space:
                    rates[name].append(round(rate(space, variables, count)))
        version = on.broker.version
    shares = [one / other for one, other in zip(rates["with"], rates["without"], strict=True)]
    kept = statistics.median(shares) >= SHARE
    shown = {"rates_per_s": rates, "share": [round(share, 2) for share in shares]}
    print(
        json.dumps({"broker": version, **shown, "median": round(statistics.median(shares), 2), "kept": kept}, indent=2)
    )
    return 0 if kept else 1


@contextlib.contextmanager
def endpoint() -> Iterator[str]:
    """The server of the example; every device is active."""
    command = [sys.executable, str(SERVER), "0", os.devnull]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def rate(space: Space, variables: dict[str, str], count: int) -> float:
    """Requests per second out of a full queue, the ramp at the beginning left out."""
    with (space.folder / "tarry.toml").open("a", encoding="utf-8") as file:
        file.write(RULE)
    asyncio.run(fill(space, count))
    os.environ.pop(VARIABLE, None)
    os.environ.update(variables)
    with serving(space) as service:
        seen = [one for one in service.wait_scheduled(count) if one[1] > 0]
        answered = service.metric("tarry_eligibility_requests_total")
    if bool(answered) is not bool(variables):
        raise RuntimeError(f"{answered:g} requests to the endpoint")
    (start, before), (end, after) = seen[0], seen[-1]
    return (after - before) / (end - start)


async def fill(space: Space, count: int) -> None:
    """So many requests, each with another device, confirmed."""
    publisher = await Publisher.open(space.address, "benchmark: load")
    try:
        for start in range(0, count, 1_000):
            outcomes = await publisher.publish([with_device() for _ in range(min(1_000, count - start))])
            if set(outcomes) - {PublishOutcome.CONFIRMED}:
                raise RuntimeError(f"the broker did not take every request: {set(outcomes)}")
    finally:
        await publisher.link.close()


def with_device() -> Message:
    made = request()
    made.properties.headers = HEADERS + entry("device_id", f"device-{made.token}")
    return made


if __name__ == "__main__":
    sys.exit(main())

"""What traces cost: the router with traces on against the same router with traces off, taking turns.

Every message carries a `traceparent`. "off" and "off again" are the same and show the noise of the run; "unsampled" has
traces on and no sampled message; "1 % sampled" has one in a hundred. All requests wait in a full queue at the start.

python -m benchmarks.traces [--quick] [--rounds N] [--broker SERIES] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.router.load import fill
from benchmarks.router.own import serving
from benchmarks.router.stage import Space, Stage, stage
from tarry.amqp.field_tables import entry
from tests.support.otlp import address_of, received_spans
from tests.support.receiver import Receiver, receiving

LONG = "30m"
"""A delay that nothing comes back from during a measurement."""

MOST = 0.03
"""The overhead stays below this."""

HUNDREDTH = 100
MODES = ("off", "off again", "unsampled", "1 % sampled")


@dataclass(frozen=True)
class Run:
    """One run of one mode."""

    rate: float
    """Requests scheduled a second."""
    processor_us: float
    """Processor time of the router for each request."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds, fewer messages: proves nothing")
    parser.add_argument("--rounds", metavar="N", type=int, default=8, help="default: 8, which take six minutes")
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result there as well")
    arguments = parser.parse_args()
    rounds, count = (2, 6_000) if arguments.quick else (arguments.rounds, 20_000)
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    with stage(arguments.broker) as on, receiving() as collector:
        for round_ in range(rounds):
            # Each mode is first in turn, so that none has the place after the fullest pause.
            for mode in [*MODES[round_ % len(MODES) :], *MODES[: round_ % len(MODES)]]:
                runs[mode].append(measure(on, mode, count, collector))
                print(f"round {round_ + 1} of {rounds}: {mode}: {runs[mode][-1]}", file=sys.stderr)
        version = on.broker.version
        spans = len(received_spans(collector))
    shown = {
        "broker": version,
        "rates_per_s": {mode: [round(one.rate) for one in found] for mode, found in runs.items()},
        "processor_us": {mode: [round(one.processor_us, 1) for one in found] for mode, found in runs.items()},
        "spans": spans,
        "of_off": {mode: compared(runs["off"], runs[mode]) for mode in MODES[1:]},
    }
    kept = (
        spans == rounds * count // HUNDREDTH * 2
        and all(
            shown["of_off"][mode]["processor"] < MOST  # type: ignore[index]
            for mode in MODES[2:]
        )
    )
    text = json.dumps(shown | {"kept": kept}, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 0 if kept else 1


def compared(base: Sequence[Run], other: Sequence[Run]) -> dict[str, float]:
    """How much more processor time, and how much less speed, in the medians over all rounds."""

    def medians(runs: Sequence[Run]) -> tuple[float, float]:
        return statistics.median(one.processor_us for one in runs), statistics.median(one.rate for one in runs)

    (base_us, base_rate), (us, rate) = medians(base), medians(other)
    return {"processor": round(us / base_us - 1, 4), "speed": round(1 - rate / base_rate, 4)}


def measure(on: Stage, mode: str, count: int, collector: Receiver) -> Run:
    settings = {} if mode.startswith("off") else {"OTEL_EXPORTER_OTLP_ENDPOINT": address_of(collector)}
    with on.space(LONG) as space:
        return run(space, count, headers(sampled=mode == MODES[-1]), settings)


def run(space: Space, count: int, more: Callable[[], bytes], settings: dict[str, str]) -> Run:
    """Out of a full queue; the ramp at the beginning left out."""
    asyncio.run(fill(space, count, more))
    with serving(space, **settings) as service:
        first = service.wait_scheduled(1)[-1]
        before = service.processor_s()
        seen = service.wait_scheduled(count)
        used = service.processor_s() - before
    (start, at_start), (end, at_end) = first, seen[-1]
    done = at_end - at_start
    return Run(done / (end - start), used / done * 1e6)


def headers(*, sampled: bool) -> Callable[[], bytes]:
    numbers = itertools.count(1)

    def one() -> bytes:
        number = next(numbers)
        flags = "01" if sampled and number % HUNDREDTH == 0 else "00"
        return entry("traceparent", f"00-{number:032x}-{number:016x}-{flags}")

    return one


if __name__ == "__main__":
    sys.exit(main())

"""What traces cost: the router with traces on against the same router with traces off, taking turns.

Every message carries a `traceparent`. "off" and "off again" are the same and show the noise of the run; "unsampled" has
traces on and no sampled message; "1 % sampled" has one in a hundred. All requests wait in a full queue at the start.
Compared are the processor time of the router and the speed of scheduling. The promise is kept (exit code 0) if each
overhead is below 3 % and is not told from noise. With a noise of 3 %, or fewer than 8 rounds, the run is undecided
(exit code 2).

python -m benchmarks.traces [--quick] [--rounds N] [--messages N] [--broker SERIES] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.router.load import fill
from benchmarks.router.own import serving
from benchmarks.router.stage import Space, Stage, stage
from benchmarks.traces.verdict import Comparison, Verdict, compare, overall
from tarry.amqp.field_tables import entry
from tests.support.otlp import address_of, received_spans
from tests.support.receiver import Receiver, receiving

LONG = "30m"
"""A delay that nothing comes back from during a measurement."""

HUNDREDTH = 100
MODES = ("off", "off again", "unsampled", "1 % sampled")
EXIT_CODES: dict[Verdict, int] = {"kept": 0, "broken": 1, "undecided": 2}


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
    more = "in each run; default: 20000. More make less noise"
    parser.add_argument("--messages", metavar="N", type=int, default=20_000, help=more)
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result there as well")
    arguments = parser.parse_args()
    rounds, count = (2, 6_000) if arguments.quick else (arguments.rounds, arguments.messages)
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    with stage(arguments.broker) as on, receiving() as collector:
        for round_ in range(rounds):
            # Each mode is first in turn, so that none has the place after the fullest pause.
            for mode in [*MODES[round_ % len(MODES) :], *MODES[: round_ % len(MODES)]]:
                runs[mode].append(measure(on, mode, count, collector))
                print(f"round {round_ + 1} of {rounds}: {mode}: {runs[mode][-1]}", file=sys.stderr)
        version = on.broker.version
        spans = len(received_spans(collector))
    found = {mode: compared(runs, mode) for mode in MODES[2:]}
    verdict = overall([one.verdict for of_mode in found.values() for one in of_mode.values()])
    complete = spans == rounds * count // HUNDREDTH * 2
    shown = {
        "broker": version,
        "rates_per_s": {mode: [round(one.rate) for one in runs[mode]] for mode in MODES},
        "processor_us": {mode: [round(one.processor_us, 1) for one in runs[mode]] for mode in MODES},
        "spans": spans,
        "spans_complete": complete,
        "overhead": {
            mode: {name: one._asdict() | {"verdict": one.verdict} for name, one in of_mode.items()}
            for mode, of_mode in found.items()
        },
        "verdict": verdict,
    }
    text = json.dumps(shown, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return EXIT_CODES[verdict] if complete else EXIT_CODES["broken"]


def compared(runs: Mapping[str, Sequence[Run]], mode: str) -> dict[str, Comparison]:
    """A mode with the two runs without traces of each round, in processor time and in speed."""
    rounds = list(zip(runs["off"], runs["off again"], runs[mode], strict=True))
    return {
        "processor": compare([(off.processor_us, again.processor_us, on.processor_us) for off, again, on in rounds]),
        "speed": compare([(1 / off.rate, 1 / again.rate, 1 / on.rate) for off, again, on in rounds]),
    }


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
    return Run(speed([first, *seen], count), used / (seen[-1][1] - first[1]) * 1e6)


def speed(seen: Sequence[tuple[float, float]], count: int) -> float:
    """Requests a second, from moments and counts. The last look is left out: the end was some time before it."""
    before = [one for one in seen if one[1] < count]
    (start, at_start), (end, at_end) = seen[0], before[-1] if len(before) > 1 else seen[-1]
    return (at_end - at_start) / (end - start)


def headers(*, sampled: bool) -> Callable[[], bytes]:
    numbers = itertools.count(1)

    def one() -> bytes:
        number = next(numbers)
        flags = "01" if sampled and number % HUNDREDTH == 0 else "00"
        return entry("traceparent", f"00-{number:032x}-{number:016x}-{flags}")

    return one


if __name__ == "__main__":
    sys.exit(main())

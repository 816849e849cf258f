"""`make fuzz`: a million cases against the request decoder, on all cores; exit code 1 if one did harm."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from secrets import randbelow

from rich.console import Console
from rich.progress import Progress

from tests.hostile.fuzz.case import read
from tests.hostile.fuzz.run import Tally, judged, quiet, run, watchdog

CHUNK = 2_500
FOLDER = Path(".tarry/fuzz")
TOLD = 10


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    console = Console(soft_wrap=True, highlight=False)
    if given.replay:
        return _replay(given.replay, console)
    seed = given.seed if given.seed is not None else randbelow(2**31)
    console.print(f"seed {seed}, {given.cases:,} cases, {given.jobs} processes; again: make fuzz ARGS='--seed {seed}'")
    started = time.monotonic()
    tally = Tally()
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("fuzzing", total=given.cases)
        for done in _chunks(seed, given.cases, given.jobs):
            tally.add(done)
            progress.update(bar, completed=tally.cases, description=f"fuzzing, {len(tally.failures)} failures")
    _tell(tally, time.monotonic() - started, console)
    return 1 if tally.failures or tally.cases != given.cases else 0


def _chunks(seed: int, cases: int, jobs: int) -> Iterator[Tally]:
    ranges = [range(start, min(start + CHUNK, cases)) for start in range(0, cases, CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run, seed, numbers, FOLDER) for numbers in ranges]):
            yield done.result()


def _tell(tally: Tally, seconds: float, console: Console) -> None:
    for result, number in sorted(tally.results.items()):
        console.print(f"  {result:24} {number:>10,}", markup=False)
    rate = tally.cases / seconds
    console.print(f"{tally.cases:,} cases in {seconds:.0f} s ({rate:,.0f}/s), {len(tally.failures)} failures")
    for failure in tally.failures[:TOLD]:
        console.print(f"  {failure}", markup=False)
    if tally.failures:
        console.print("look at one with: make fuzz ARGS='--replay FILE'")


def _replay(path: Path, console: Console) -> int:
    """The failure itself, as a traceback."""
    case = read(path)
    console.print(str(case), markup=False)
    with quiet(), watchdog():
        console.print(judged(case), markup=False)
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=Path, metavar="FILE", help="judge one case that was kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

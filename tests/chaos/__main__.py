"""`make chaos`: every fault on every broker, or those asked for; exit code 1 if one message is unaccounted for."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.chaos.faults import FAULTS
from tests.chaos.faults.fault import Fault, Size
from tests.chaos.judge import Verdict
from tests.chaos.report import Line, Report
from tests.chaos.run import Run
from tests.chaos.stage import KINDS, Kind, Stage, stage

FULL = Size(4_000, 200)
"""At the least: the load goes on as long as the fault does, which makes it some 6,000 on average."""
CLUSTER = Size(4_000, 120)
"""Three nodes share the cores with all the rest."""
SHORT = Size(500, 150)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was mounted and started is cleared away
    console = Console(width=None if sys.stdout.isatty() else 160)
    began, started = datetime.now(UTC), time.monotonic()
    lines: list[Line] = []
    for kind in given.series or KINDS:
        lines += _on(kind, given, console)
    report = Report(given.seed, began, time.monotonic() - started, lines)
    report.show(console)
    if given.json:
        report.write_json(given.json)
    if given.page and report.proven:
        report.write_page(given.page)
    return 0 if report.proven and lines else 1


def _on(kind: Kind, given: argparse.Namespace, console: Console) -> Iterator[Line]:
    left = [fault for fault in FAULTS if kind in fault.kinds and (not given.only or fault.name in given.only)]
    while left:
        with stage(kind) as made:
            for line in _until_broken_off(made, left, given):
                console.print(f"{'ok' if line.proven else '--'} {line}", markup=False)
                for complaint in line.verdict.complaints() if line.verdict else ():
                    console.print(f"   {complaint}", markup=False)
                yield line


def _until_broken_off(made: Stage, left: list[type[Fault]], given: argparse.Namespace) -> Iterator[Line]:
    """A scene that broke off may have left a broker dead: the next one needs another stage."""
    while left:
        line = _one(made, left.pop(0)(short=given.short), given)
        yield line
        if line.broken_off:
            return


def _one(made: Stage, fault: Fault, given: argparse.Namespace) -> Line:
    started = time.monotonic()
    line = Line(f"{made.version}{' × 3' if made.kind == 'cluster' else ''}", fault.name, fault.title)
    if obstacle := fault.obstacle(made):
        return replace(line, skipped=obstacle)
    run = Run(made, [fault], _size(made, fault, given), given.seed, broken=given.broken_router)
    try:
        line = replace(line, verdict=run.verdict())
    except Exception as problem:  # noqa: BLE001  one scene that went wrong must not hide the others
        traceback.print_exc()
        line = replace(line, verdict=Verdict(unaccounted=[f"it broke off: {problem!r}"[:300]]), broken_off=True)
    return replace(line, seconds=time.monotonic() - started, phases=run.phases)


def _size(made: Stage, fault: Fault, given: argparse.Namespace) -> Size:
    size = SHORT if given.short else fault.size(CLUSTER if made.kind == "cluster" else FULL)
    return Size(given.messages or size.messages, given.rate or size.rate)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", action="append", choices=names, help="only this fault; may be given again")
    parser.add_argument("--series", action="append", choices=KINDS, help="only on this broker; may be given again")
    parser.add_argument("--seed", type=int, default=1, help="of the workload and of the moments of the faults")
    parser.add_argument("--short", action="store_true", help="a few hundred messages, and faults of a moment")
    parser.add_argument("--messages", type=int, help="so many for each fault")
    parser.add_argument("--rate", type=float, help="so many a second")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page for the documentation there")
    parser.add_argument("--broken-router", action="store_true", help="use one that acknowledges before the confirm")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""`make soak`: an hour of steady load with a fault each minute; exit code 1 if a message is lost or something grows."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.chaos.soak.page import complaints, section, write_json, write_section
from tests.chaos.soak.run import Soak
from tests.chaos.stage import stage


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = datetime.now(UTC)
    with stage(given.series, fillable=False) as made:
        soak = Soak(made, given.minutes, given.rate, given.seed)
        soak.run(given.between)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(section(soak, began), markup=False)
    for complaint in complaints(soak):
        console.print(complaint, style="red", markup=False)
    if given.json:
        write_json(soak, began, given.json)
    if given.page and soak.proven:
        write_section(soak, began, given.page)
    return 0 if soak.proven else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the load goes on")
    parser.add_argument("--rate", type=float, default=500.0, help="messages a second")
    parser.add_argument("--between", type=float, default=60.0, help="seconds from one fault to the next")
    parser.add_argument("--seed", type=int, default=1, help="of the workload and of the order of the faults")
    parser.add_argument("--series", choices=("4.3", "3.10"), default="4.3", help="on this broker")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write verdict and samples there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a section of this page")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

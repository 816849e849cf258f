"""Prints one screen about a run of .ci/run and writes failures.txt and durations.tsv beside its logs.

Usage: summary.py FOLDER, where FOLDER has steps.tsv (name, exit code, seconds) and the JUnit files of the test steps.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

SLOWEST = 8
SHOWN = 10
WIDTH = 140


class Case(NamedTuple):
    name: str
    seconds: float
    outcome: str = "passed"
    reason: str = ""
    details: str = ""


def cases(report: Path) -> Iterator[Case]:
    """One for each test; a test that failed and whose teardown failed too is there twice."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  written by our own test run
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        seconds = float(case.get("time", 0))
        found = [child for child in case if child.tag in {"failure", "error", "skipped"}]
        for child in found:
            yield Case(name, seconds, child.tag, child.get("message") or "", child.text or "")
        if not found:
            yield Case(name, seconds)


def clipped(text: str) -> str:
    line = "  " + " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def summary(folder: Path, every: Sequence[Case]) -> Iterator[str]:
    steps = [line.split("\t") for line in (folder / "steps.tsv").read_text().splitlines()]
    steps.append(["whole", str(max(int(status) for _, status, _ in steps)), str(sum(int(took) for *_, took in steps))])
    yield f"\n{'step':<16} {'result':<12} {'time':>6}"
    for name, status, seconds in steps:
        minutes, rest = divmod(int(seconds), 60)
        yield f"{name:<16} {'passed' if status == '0' else f'FAILED ({status})':<12} {minutes:>3}:{rest:02}"
    broken = [case for case in every if case.outcome in {"failure", "error"}]
    skipped = Counter(case.reason for case in every if case.outcome == "skipped")
    passed = sum(case.outcome == "passed" for case in every)
    yield f"\n{passed} passed, {len(broken)} failed, {skipped.total()} skipped"
    yield from (clipped(f"FAILED {case.name}: {case.reason}") for case in broken[:SHOWN])
    if len(broken) > SHOWN:
        yield f"  … and {len(broken) - SHOWN} more: {folder}/failures.txt"
    yield from (clipped(f"skipped {number}: {reason}") for reason, number in skipped.most_common(SHOWN))
    yield f"\nslowest (all: {folder}/durations.tsv)"
    yield from (clipped(f"{case.seconds:.1f} s  {case.name}") for case in every[:SLOWEST])


def main(folder: Path) -> None:
    found = (case for report in folder.glob("*.xml") for case in cases(report))
    every = sorted(found, key=lambda case: -case.seconds)
    details = (f"{case.name}\n{case.details}\n" for case in every if case.outcome in {"failure", "error"})
    (folder / "failures.txt").write_text("\n".join(details))
    (folder / "durations.tsv").write_text("".join(f"{c.seconds:.2f}\t{c.outcome}\t{c.name}\n" for c in every))
    for line in summary(folder, every):
        print(line)  # noqa: T201  it is what this program is for


if __name__ == "__main__":
    main(Path(sys.argv[1]))

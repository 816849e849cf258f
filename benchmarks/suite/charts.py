"""The charts of a run. Pure: from the result to SVG texts by file name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.samples import Samples
from benchmarks.suite.svg import Bar, bars

OWN = ("tarry", "tarry, ladder", "whole way, tap read")


@dataclass(frozen=True)
class Chart:
    """What one of them shows."""

    file: str
    scenario: str
    measure: str
    title: str
    unit: str
    log: bool = False


CHARTS = (
    Chart("bench-capacity.svg", "capacity", "per_s", "Carried on time", "retries per second, 99 % at most 250 ms late"),
    Chart("bench-end-to-end.svg", "end to end", "per_s", "End to end", "retries per second"),
    Chart("bench-scheduling.svg", "scheduling", "per_s", "Scheduling", "requests per second"),
    Chart("bench-drain.svg", "drain", "per_s", "20,000 due in the same instant", "messages per second"),
    Chart("bench-drift-200.svg", "drift", "p99 at 200/s", "Drift at 200 a second, p99", "milliseconds late", log=True),
    Chart(
        "bench-drift-1000.svg", "drift", "p99 at 1000/s", "Drift at 1,000 a second, p99", "milliseconds late", log=True
    ),
    Chart("bench-backlog.svg", "backlog", "per_s", "With so many waiting", "requests per second"),
)


def charts(result: dict[str, Any]) -> dict[str, str]:
    """Only those with something in them."""
    found = Samples.from_json(result)
    names = {slug: one["name"] for slug, one in result["contenders"].items()}
    made = {one.file: _chart(found, names, one) for one in CHARTS}
    return {file: text for file, text in made.items() if text is not None}


def _chart(found: Samples, names: dict[str, str], one: Chart) -> str | None:
    rows = _rows(found, names, one.scenario, one.measure)
    if not any(row.value is not None for row in rows):
        return None
    return bars(one.title, one.unit, rows, log=one.log)


def label_of(subject: str, names: dict[str, str]) -> str:
    """The contender's name, and the way to run it if that is part of the subject."""
    slug, comma, way = subject.partition(",")
    return names.get(subject, f"{names[slug]}{comma}{way}" if slug in names else subject)


def _rows(found: Samples, names: dict[str, str], scenario: str, measure: str) -> Sequence[Bar]:
    rows = []
    for subject in found.subjects(scenario):
        spread, label, own = found.spread(scenario, subject, measure), label_of(subject, names), subject in OWN
        if spread is None:
            broke = found.failure(scenario, subject) is not None
            rows.append(Bar(label, None, own=own, note="broke: see the page" if broke else "no figure: see the page"))
        else:
            rows.append(Bar(label, spread.median, spread.least, spread.most, own=own))
    return rows

"""A table, and how its figures are told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.suite.samples import Spread
from benchmarks.suite.svg import figure


@dataclass(frozen=True)
class Grid:
    """A heading, a sentence, columns and rows."""

    heading: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    chart: str | None = None


def told(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.count == 1 or spread.least == spread.most:
        return figure(spread.median)
    return f"{figure(spread.median)} ({figure(spread.least)} to {figure(spread.most)})"

"""Bar charts as SVG text, by hand: a plotting library would be larger than all of this. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 900, 250, 130
TOP, ROW, BAR, BOTTOM = 64, 30, 18, 20
STYLE = """
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1d2733 }
.title { font-size: 17px; font-weight: 600 } .small { font-size: 11.5px; fill: #5b6776 }
.bar { fill: #b9c6d6 } .own { fill: #3f7fbf } .spread { stroke: #1d2733; stroke-width: 1.4 }
.none { font-style: italic; fill: #8a5a00 } .page { fill: #ffffff }
"""


@dataclass(frozen=True)
class Bar:
    """One row: a figure with its spread, or the reason why there is none."""

    label: str
    value: float | None
    least: float = 0.0
    most: float = 0.0
    own: bool = False
    note: str = ""


def bars(title: str, unit: str, rows: Sequence[Bar], *, log: bool = False) -> str:
    height = TOP + ROW * len(rows) + BOTTOM
    scale = _scale(rows, log=log)
    parts = [*_head(title, unit, height, log=log)]
    parts += [part for place, row in enumerate(rows) for part in _row(TOP + ROW * place, row, scale)]
    return "\n".join([*parts, "</svg>\n"])


class Scale:
    """From a figure to a length in pixels."""

    def __init__(self, least: float, most: float, *, log: bool) -> None:
        self._least, self._most, self._log = least, most, log

    def __call__(self, value: float) -> float:
        room = WIDTH - LEFT - RIGHT
        if self._log:
            value, least, most = (math.log10(max(one, self._least)) for one in (value, self._least, self._most))
            return room * (value - least) / (most - least)
        return room * max(value, 0.0) / self._most


def _scale(rows: Sequence[Bar], *, log: bool) -> Scale:
    figures = [one for row in rows if row.value is not None for one in (row.value, row.most) if one > 0]
    most = max(figures, default=1.0)
    least = 10 ** math.floor(math.log10(min(figures, default=1.0)) - 0.001)
    return Scale(least, most if most > least else least * 10, log=log)


def _head(title: str, unit: str, height: int, *, log: bool) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="page" width="{WIDTH}" height="{height}"/>'
    yield f'<text class="title" x="20" y="28">{escape(title)}</text>'
    told = f"{unit}{', logarithmic' if log else ''}; the line shows the least and the most of the repeats"
    yield f'<text class="small" x="20" y="47">{escape(told)}</text>'


def _row(top: float, row: Bar, scale: Scale) -> Iterator[str]:
    middle = top + BAR / 2
    yield f'<text x="{LEFT - 10}" y="{middle + 4.5:.1f}" text-anchor="end">{escape(row.label)}</text>'
    if row.value is None:
        yield f'<text class="none" x="{LEFT + 4}" y="{middle + 4.5:.1f}">{escape(row.note or "not measured")}</text>'
        return
    length = scale(row.value)
    kind = "bar own" if row.own else "bar"
    yield f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>'
    end = length
    if row.most > row.least:
        start, end = scale(row.least), max(length, scale(row.most))
        yield (
            f'<line class="spread" x1="{LEFT + start:.1f}" x2="{LEFT + end:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
        )
    told = f"{figure(row.value)}{f' {row.note}' if row.note else ''}"
    yield f'<text x="{LEFT + end + 8:.1f}" y="{middle + 4.5:.1f}">{escape(told)}</text>'


def figure(value: float) -> str:
    """As many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}" if abs(value) < 1 else f"{value:.2f}"

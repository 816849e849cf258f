"""Charts as SVG. Only numbers and fixed words go into them; colours are classes of the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from tarry.core.durations import humanise

WIDTH, HEIGHT = 600, 90
SPARK_WIDTH, SPARK_HEIGHT = 130, 22
GAP = 2
MARKS = (1_000, 60_000, 3_600_000, 86_400_000, 7 * 86_400_000, 31 * 86_400_000, 365 * 86_400_000)
LEFT, RIGHT = 8, 24


def bars(values: Sequence[int], label: str, start: str, end: str, *, each: str = "a minute") -> Markup:
    """One bar for each value; `start` and `end` are the ends of the axis. `each` says what one bar is."""
    most, step = max(values, default=0), WIDTH / max(1, len(values))
    parts = [_bar(index * step, step - GAP, value, most) for index, value in enumerate(values) if value]
    text = f"{sum(values):,} in all, at most {most:,} {each}"
    return _chart(f"{label}: {text}", Markup("").join(parts), start, text, end)


def stacked(
    values: Sequence[tuple[int, int]], label: str, start: str, end: str, *, each: str, words: tuple[str, str]
) -> Markup:
    """Two numbers for each time, the second on top of the first; `words` say what they are."""
    most, step = max(map(sum, values), default=0), WIDTH / max(1, len(values))
    parts = [_stack(index * step, step - GAP, pair, most, words) for index, pair in enumerate(values) if sum(pair)]
    first, second = (sum(pair[place] for pair in values) for place in (0, 1))
    text = f"{first:,} {words[0]}, {second:,} {words[1]}, at most {most:,} {each}"
    return _chart(f"{label}: {text}", Markup("").join(parts), start, text, end)


def _stack(x: float, width: float, pair: tuple[int, int], most: int, words: tuple[str, str]) -> Markup:
    high, low = ((HEIGHT - 4) * value / most for value in (sum(pair), pair[0]))
    title = f"{pair[0]:,} {words[0]}, {pair[1]:,} {words[1]}"
    places = (("bar", HEIGHT - low, low), ("bar bad", HEIGHT - high, high - low))
    return Markup("").join(
        Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>').format(
            name, f"{x:.1f}", f"{y:.1f}", f"{width:.1f}", f"{height:.1f}", title
        )
        for name, y, height in places
        if height
    )


def lines(
    values: Sequence[Sequence[float | None]], label: str, start: str, text: str, end: str, *, top: float = 0.0
) -> Markup:
    """One or two lines over the same time, of which the second is dashed; with gaps where there is no value. The axis
    begins at 0, and goes up to `top`, or to the largest value.
    """
    most = top or max((value for line in values for value in line if value is not None), default=0) or 1
    parts = [
        Markup('<polyline class="{}" points="{}"/>').format(name, _points(part, len(line), WIDTH, HEIGHT, most))
        for name, line in zip(("trend", "trend second"), values, strict=False)
        for part in _runs(line)
    ]
    return _chart(f"{label}: {text}", Markup("").join(parts), start, text, end)


def rate_line(values: Sequence[float | None], label: str) -> Markup:
    """A small line of percentages."""
    parts = [
        Markup('<polyline class="trend" points="{}"/>').format(
            _points(part, len(values), SPARK_WIDTH, SPARK_HEIGHT - 2, 100)
        )
        for part in _runs(values)
    ]
    line = Markup('<line class="axis" x1="0" y1="{0}" x2="{1}" y2="{0}"/>').format(SPARK_HEIGHT, SPARK_WIDTH)
    return Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
        SPARK_WIDTH, SPARK_HEIGHT, label, line, Markup("").join(parts)
    )


Run = list[tuple[int, float]]


def _runs(values: Sequence[float | None]) -> list[Run]:
    """The places and values of each part without a gap."""
    found: list[Run] = []
    for place, value in enumerate(values):
        if value is not None:
            is_next = bool(found) and found[-1][-1][0] == place - 1
            found[-1].append((place, value)) if is_next else found.append([(place, value)])
    return found


def _points(run: Run, number: int, width: int, height: int, most: float) -> str:
    """Each value in the middle of its time. One alone is as wide as half of it."""
    step = width / max(1, number)
    places = [((place + 0.5) * step, height - (height - 4) * min(1.0, value / most)) for place, value in run]
    if len(places) == 1:
        ((x, y),) = places
        places = [(x - step / 4, y), (x + step / 4, y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _chart(label: str, parts: Markup, start: str, text: str, end: str) -> Markup:
    return Markup(
        '<svg class="chart bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<line class="axis" x1="0" y1="{}" x2="{}" y2="{}"/>{}</svg>'
        '<p class="ends"><span>{}</span><span>{}</span><span>{}</span></p>'
    ).format(WIDTH, HEIGHT, label, HEIGHT, WIDTH, HEIGHT, parts, start, text, end)


def sparkline(hours: Sequence[int]) -> Markup:
    """When the messages of a group came: one bar for all before the last day, then one for each of its hours."""
    older, last = sum(hours[:1]), hours[1:]
    most, step = max(last, default=0), SPARK_WIDTH / 26
    bars = [_spark((index + 2) * step, step, value, most, "bar") for index, value in enumerate(last) if value]
    if older:
        bars.insert(0, _spark(0, step, 1, 1, "older"))
    label = f"{sum(last):,} in the last 24 hours, {older:,} before"
    line = Markup('<line class="axis" x1="0" y1="{0}" x2="{1}" y2="{0}"/>').format(SPARK_HEIGHT, SPARK_WIDTH)
    return Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
        SPARK_WIDTH, SPARK_HEIGHT, label, line, Markup("").join(bars)
    )


def _spark(x: float, step: float, value: int, most: int, kind: str) -> Markup:
    height = max(2.0, value / most * SPARK_HEIGHT)
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
        kind, f"{x:.1f}", f"{SPARK_HEIGHT - height:.1f}", f"{step - 1:.1f}", f"{height:.1f}"
    )


def _bar(x: float, width: float, value: int, most: int) -> Markup:
    height = max(2.0, value / most * (HEIGHT - 4))
    return Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>').format(
        f"{x:.1f}", f"{HEIGHT - height:.1f}", f"{width:.1f}", f"{height:.1f}", value
    )


def schedule(after_ms: Sequence[int], longest_ms: int) -> Markup:
    """A policy: a mark for each retry on a logarithmic axis of time, the same axis for all policies."""

    def x(ms: int) -> float:
        top = math.log10(max(longest_ms, 10_000))
        return LEFT + (WIDTH - LEFT - RIGHT) * max(0.0, math.log10(max(ms, 100)) - 2) / (top - 2)

    ticks = [_tick(x(ms), humanise(ms)) for ms in MARKS if ms <= longest_ms]
    dots = [_dot(x(ms), number + 1, ms) for number, ms in enumerate(after_ms)]
    line = Markup('<line class="way" x1="{}" y1="22" x2="{}" y2="22"/>').format(
        LEFT, f"{x(after_ms[-1]) if after_ms else LEFT:.1f}"
    )
    return Markup('<svg class="chart schedule" viewBox="0 0 {} 60" role="img" aria-label="{}">{}</svg>').format(
        WIDTH,
        f"{len(after_ms)} retries, the last {humanise(after_ms[-1])} after the failure" if after_ms else "no retries",
        Markup("").join([*ticks, line, *dots]),
    )


def _tick(x: float, text: str) -> Markup:
    return Markup(
        '<line class="axis" x1="{0}" y1="6" x2="{0}" y2="40"/>'
        '<text class="tick" x="{0}" y="55" text-anchor="middle">{1}</text>'
    ).format(f"{x:.1f}", text)


def _dot(x: float, number: int, ms: int) -> Markup:
    return Markup('<circle class="bar" cx="{}" cy="22" r="6"><title>{}</title></circle>').format(
        f"{x:.1f}", f"retry {number}: {humanise(ms)} after the failure"
    )

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


def bars(values: Sequence[int], label: str, start: str, end: str) -> Markup:
    """One bar for each value; `start` and `end` are the ends of the axis."""
    most, step = max(values, default=0), WIDTH / max(1, len(values))
    parts = [_bar(index * step, step - GAP, value, most) for index, value in enumerate(values) if value]
    return Markup(
        '<svg class="chart bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<line class="axis" x1="0" y1="{}" x2="{}" y2="{}"/>{}</svg>'
        '<p class="ends"><span>{}</span><span>{}</span><span>{}</span></p>'
    ).format(
        *(WIDTH, HEIGHT, f"{label}: {sum(values)} in all, at most {most} a minute"),
        *(HEIGHT, WIDTH, HEIGHT, Markup("").join(parts)),
        *(start, f"{sum(values):,} in all, at most {most:,} a minute", end),
    )


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

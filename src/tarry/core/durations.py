"""Parses and formats durations (`2s`, `1h30m`), which are stored as whole milliseconds."""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
PATTERN = r"^(\d+(\.\d+)?(ms|s|m|h|d))+$"

LONGEST_TEXT = 40
LONGEST = 36_525 * UNITS["d"]
"""A hundred years. A longer duration is a mistake, and the resulting time could not be stored."""


def parse_duration(text: object) -> int:
    """`"1m30s"` → 90000. Whole milliseconds only; a bare number is refused because its unit would be a guess."""
    if not isinstance(text, str) or len(text) > LONGEST_TEXT or not re.fullmatch(PATTERN, text, re.ASCII):
        raise ValueError(f"`{str(text)[:LONGEST_TEXT]}`: use ms, s, m, h or d, as in 500ms, 2s or 1h30m")
    total = sum(Fraction(number) * UNITS[unit] for number, unit in _PART.findall(text))
    if total.denominator != 1:
        raise ValueError(f"`{text}`: shorter than a millisecond; use whole milliseconds")
    if total > LONGEST:
        raise ValueError(f"`{text}`: longer than a hundred years")
    return int(total)


def format_duration(ms: int) -> str:
    """The spelling used in queue names: in the largest of h, m, s, ms that divides evenly (`90s`, `1m`, `24h`)."""
    for unit in ("h", "m", "s"):
        if ms and ms % UNITS[unit] == 0:
            return f"{ms // UNITS[unit]}{unit}"
    return f"{ms}ms"


def humanise(ms: float) -> str:
    """For display, not for names: at most two units (`1h 30m`, `2.4s`, `12ms`)."""
    if ms < UNITS["s"]:
        return f"{ms:.0f}ms"
    if ms < UNITS["m"]:
        return f"{ms / UNITS['s']:.1f}s".replace(".0s", "s")
    for big, small in (("d", "h"), ("h", "m"), ("m", "s")):
        if ms >= UNITS[big]:
            whole, rest = divmod(round(ms), UNITS[big])
            return f"{whole}{big}" + (f" {rest // UNITS[small]}{small}" if rest >= UNITS[small] else "")
    raise AssertionError(ms)

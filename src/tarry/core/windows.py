"""Time windows: at which times messages may return. Pure: the moment is an argument, in milliseconds since 1970.

Whether a window is open depends on the wall clock of its zone and on nothing else. Where clocks are put forward, an
opening that does not exist moves to the first moment after the change; where they are put back, times that exist twice
are open twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from typing import Annotated, NamedTuple, Self
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from tarry.core.duration_field import Duration
from tarry.core.model import Model

DAY = 24 * 60
"""Minutes of a day."""
DAY_MS = DAY * 60_000
HORIZON = 15
"""Days to look ahead. Windows repeat every week; a change of the clock can remove a short one once."""

REFERENCE_MS = 1_767_571_200_000
"""2026-01-05, a Monday: the beginning of the days that represent all others."""

CLOCK_CHANGE_MS = 3_600_000
"""By how much a change of the clock can make a window open later."""

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIMES = re.compile(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)", re.ASCII)
_EXAMPLE = 'write for example "mon-fri 08:00-20:00", "sat,sun" or "22:00-06:00"'


class TimeSpan(NamedTuple):
    """Some hours of some days, as in `mon-fri 08:00-20:00`. Hours past midnight belong to the day they begin on."""

    text: str
    days: frozenset[int]
    start: int
    """Minutes since midnight."""
    end: int
    """Minutes since midnight of the same day; more than a day if it ends on the next one."""

    def holds(self, weekday: int, minute: int) -> bool:
        """Whether it includes this minute of this weekday."""
        return (weekday in self.days and self.start <= minute < self.end) or (
            (weekday - 1) % 7 in self.days and minute + DAY < self.end
        )


def parse_span(text: str) -> TimeSpan:
    """Raises ValueError with an example if the text is not a span."""
    words = text.lower().split()
    times = words.pop() if words and ":" in words[-1] else "00:00-24:00"
    if len(words) > 1 or not text.strip():
        raise ValueError(f"`{text}`: {_EXAMPLE}")
    days = frozenset(range(7)) if not words else _parse_days(words[0], text)
    return TimeSpan(text, days, *_parse_times(times, text))


def _parse_days(given: str, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in given.split(","):
        first, _, last = part.partition("-")
        unknown = [day for day in (first, last or first) if day not in DAYS]
        if unknown:
            raise ValueError(f"`{text}`: `{unknown[0]}` is not a day; use mon, tue, wed, thu, fri, sat and sun")
        start = DAYS.index(first)
        found |= {(start + step) % 7 for step in range((DAYS.index(last or first) - start) % 7 + 1)}
    return frozenset(found)


def _parse_times(given: str, text: str) -> tuple[int, int]:
    found = _TIMES.fullmatch(given)
    if found is None:
        raise ValueError(f"`{text}`: `{given}` is not two times of day; {_EXAMPLE}")
    hours, minutes, end_hours, end_minutes = map(int, found.groups())
    start, end = hours * 60 + minutes, end_hours * 60 + end_minutes
    if minutes > 59 or end_minutes > 59 or start >= DAY or end > DAY:  # noqa: PLR2004  minutes of an hour
        raise ValueError(f"`{text}`: times go from 00:00 to 24:00")
    if start == end:
        raise ValueError(f"`{text}`: it begins when it ends; for a whole day leave out the times")
    return start, end if end > start else end + DAY


def _parse_spans(value: object) -> tuple[TimeSpan, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`{value}`: {_EXAMPLE}, or a list of such texts")
    return tuple(map(parse_span, texts))


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        known = available_timezones()
        if not known:
            raise ValueError(f"`{name}`: this machine has no time zone data; install the package tzdata") from None
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else 'write for example "Europe/Zagreb" or "UTC"'
        raise ValueError(f"`{name}` is not a time zone; {hint}") from None
    return name


Zone = Annotated[str, AfterValidator(_known_zone)]
"""The name of a time zone."""

_TEXT = {"type": "string", "examples": ["mon-fri 08:00-20:00", "sat,sun", "22:00-06:00"]}

Spans = Annotated[
    tuple[TimeSpan, ...],
    BeforeValidator(_parse_spans),
    PlainSerializer(lambda spans: [span.text for span in spans], return_type=list[str]),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}),
]


class Window(Model):
    """At which times messages may return."""

    only: Spans | None = Field(
        None, description='Messages return at these times only: days and times of day, as in "mon-fri 08:00-20:00".'
    )
    never: Spans | None = Field(None, description="Messages do not return at these times.")
    zone: Zone = Field("UTC", description="The time zone of these times, as in Europe/Zagreb.")
    spread: Duration = Field(
        0, description="Messages that wait for an opening return at a random moment within this time after it."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.only is None and self.never is None:
            raise ValueError("give `only` or `never`, the times at which messages may or may not return")
        return self

    def is_open(self, at_ms: int) -> bool:
        local = _local(at_ms, ZoneInfo(self.zone))
        now = local.weekday(), local.hour * 60 + local.minute
        return (self.only is None or any(span.holds(*now) for span in self.only)) and not any(
            span.holds(*now) for span in self.never or ()
        )

    def changes(self, after_ms: int) -> Iterator[int]:
        """Every moment in the day after `after_ms` at which it can open or close, and some others; in no order."""
        zone, until = ZoneInfo(self.zone), after_ms + DAY_MS
        first = _local(after_ms, zone).date() - timedelta(days=1)
        spans = (*(self.only or ()), *(self.never or ()))
        for day in (first + timedelta(days=step) for step in range(4)):
            for span in spans:
                if day.weekday() in span.days:
                    yield from _moments(day, span.start, zone)
                    yield from _moments(day, span.end, zone)
        if offset_at(after_ms, zone) != offset_at(until, zone):
            yield clock_change(after_ms, until, zone)

    def at(self, at_ms: int) -> str:
        """The moment on the clocks of its zone: `Sat 2026-03-28 23:10`."""
        return _local(at_ms, ZoneInfo(self.zone)).strftime("%a %Y-%m-%d %H:%M")

    def describe(self) -> str:
        """`only mon-fri 08:00-20:00 (Europe/Zagreb)`."""
        parts = [
            f"{word} {', '.join(span.text for span in spans)}"
            for word, spans in (("only", self.only), ("never", self.never))
            if spans
        ]
        return f"{' and '.join(parts)} ({self.zone})"


def _local(at_ms: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, zone)


def offset_at(at_ms: int, zone: ZoneInfo) -> timedelta | None:
    return _local(at_ms, zone).utcoffset()


def _moments(day: date, minutes: int, zone: ZoneInfo) -> Iterator[int]:
    """The moments at which clocks show this time: two where clocks are put back."""
    shown = datetime.combine(day, time()) + timedelta(minutes=minutes)
    for fold in (0, 1):
        yield round(shown.replace(tzinfo=zone, fold=fold).astimezone(UTC).timestamp() * 1000)


def clock_change(before_ms: int, after_ms: int, zone: ZoneInfo) -> int:
    """The first moment of the new offset, in whole seconds."""
    low, high = before_ms // 1000, -(-after_ms // 1000)
    old = offset_at(before_ms, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset_at(middle * 1000, zone) == old else (low, middle)
    return high * 1000


def all_open(windows: Sequence[Window], at_ms: int) -> bool:
    return all(window.is_open(at_ms) for window in windows)


def next_open(windows: Sequence[Window], at_ms: int) -> int | None:
    """The first moment from `at_ms` on at which all are open; None if there is none within the horizon."""
    return _first(windows, at_ms, lambda ms: all_open(windows, ms))


def next_closed(windows: Sequence[Window], at_ms: int) -> int | None:
    """The first moment from `at_ms` on at which one of them is closed; None if there is none within the horizon."""
    return _first(windows, at_ms, lambda ms: not all_open(windows, ms))


def _first(windows: Sequence[Window], at_ms: int, holds: Callable[[int], bool]) -> int | None:
    if holds(at_ms):
        return at_ms
    for begin in range(at_ms, at_ms + HORIZON * DAY_MS, DAY_MS):
        moments = sorted({ms for window in windows for ms in window.changes(begin) if begin < ms <= begin + DAY_MS})
        found = next(filter(holds, moments), None)
        if found is not None:
            return found
    return None


def longest_wait_ms(windows: Sequence[Window]) -> int | None:
    """How long a message may have to wait for an opening; None if there is none. Changes of the clock included."""
    at: int | None = REFERENCE_MS
    longest = 0
    while at is not None and at < REFERENCE_MS + HORIZON * DAY_MS:
        opens = next_open(windows, at)
        if opens is None:
            return None
        longest = max(longest, opens - at)
        at = next_closed(windows, opens)
    return longest + CLOCK_CHANGE_MS if longest else 0


class Opening(NamedTuple):
    """A time during which all windows are open, and the closed time before it as far as it was searched."""

    searched_from: int
    opens: int
    closes: int

    def tells(self, at_ms: int) -> bool:
        """Whether it is the next opening from this moment on."""
        return self.searched_from <= at_ms < self.closes

    def spread(self, windows: Sequence[Window], granularity_ms: int) -> int:
        """The longest spread: rounded up to a granule, a message still returns before it closes."""
        wanted = max(window.spread for window in windows)
        return max(0, min(wanted, self.closes - self.opens - granularity_ms))


def next_opening(windows: Sequence[Window], at_ms: int) -> Opening | None:
    """The current or next opening; None if there is none within the horizon."""
    opens = next_open(windows, at_ms)
    if opens is None:
        return None
    return Opening(at_ms, opens, next_closed(windows, opens) or opens + HORIZON * DAY_MS)

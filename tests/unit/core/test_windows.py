"""Windows: how they are written, and which moments are in them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from tarry.core.windows import Window, longest_wait_ms, next_closed, next_open, next_opening, parse_span

HOUR = 3_600_000


def window(**given: Any) -> Window:
    return Window.model_validate(given)


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)


def opening(at: int, *windows: Window) -> int:
    found = next_open(windows, at)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "days", "start", "end"),
    [
        ("mon-fri 08:00-20:00", {0, 1, 2, 3, 4}, 480, 1200),
        ("Sat,SUN", {5, 6}, 0, 1440),
        ("22:00-06:00", set(range(7)), 1320, 1800),
        ("fri-mon 9:30-24:00", {4, 5, 6, 0}, 570, 1440),
        ("mon,wed-thu 00:00-00:01", {0, 2, 3}, 0, 1),
    ],
)
def test_parse_span_reads_days_and_times(text: str, days: set[int], start: int, end: int) -> None:
    assert parse_span(text) == (text, frozenset(days), start, end)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "``: write for example"),
        ("mon-fri, sat 08:00-20:00", "write for example"),
        ("montag 08:00-20:00", "`montag` is not a day; use mon, tue, wed, thu, fri, sat and sun"),
        ("mon 8-20", "write for example"),
        ("mon 0٨:00-20:00", "is not two times of day"),
        ("mon 08:00", "`08:00` is not two times of day"),
        ("mon 08:00-25:00", "times go from 00:00 to 24:00"),
        ("mon 08:60-20:00", "times go from 00:00 to 24:00"),
        ("mon 24:00-08:00", "times go from 00:00 to 24:00"),
        ("mon 08:00-08:00", "it begins when it ends; for a whole day leave out the times"),
    ],
)
def test_parse_span_refuses_what_it_cannot_read(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace(".", r"\.")):
        parse_span(text)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "give `only` or `never`"),
        ({"only": []}, "or a list of such texts"),
        ({"only": 8}, "or a list of such texts"),
        ({"only": "mon", "zone": "Europe/Zagrb"}, "`Europe/Zagrb` is not a time zone; did you mean `Europe/Zagreb`?"),
        ({"only": "mon", "zone": "../etc/passwd"}, "is not a time zone"),
        ({"only": "mon", "zone": "Europe"}, "is not a time zone"),
        ({"only": "mon", "spread": "15 min"}, "use ms, s, m, h or d"),
        ({"olny": "mon"}, "Extra inputs are not permitted"),
    ],
)
def test_a_window_refuses_wrong_values_with_the_fix(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Window.model_validate(given)
    assert problem in str(caught.value)


def test_next_open_leaves_a_moment_in_the_window_as_it_is() -> None:
    at = ms("2026-11-18T12:34:56.789")
    assert opening(at, window(only="mon-fri 08:00-20:00")) == at


def test_next_open_is_the_opening_and_the_end_is_outside() -> None:
    office = window(only="mon-fri 08:00-20:00", zone="Europe/Zagreb")
    assert opening(ms("2026-11-20T20:00", "Europe/Zagreb"), office) == ms("2026-11-23T08:00", "Europe/Zagreb")
    assert opening(ms("2026-11-20T19:59:59.999", "Europe/Zagreb"), office) < ms("2026-11-20T20:00", "Europe/Zagreb")


def test_never_excludes_and_several_windows_must_all_be_open() -> None:
    office, lunch = window(only="mon-fri 08:00-20:00"), window(never="12:00-13:00", zone="America/New_York")
    assert opening(ms("2026-11-18T17:30"), office, lunch) == ms("2026-11-18T18:00")
    both = window(only=["mon-fri 08:00-20:00", "sat 10:00-12:00"], never="wed")
    assert opening(ms("2026-11-18T12:00"), both) == ms("2026-11-19T08:00")
    assert opening(ms("2026-11-21T09:00"), both) == ms("2026-11-21T10:00")


def test_hours_past_midnight_belong_to_the_day_on_which_they_begin() -> None:
    night = window(only="fri 22:00-06:00")
    assert night.is_open(ms("2026-11-21T05:59"))
    assert not night.is_open(ms("2026-11-20T05:59"))
    assert next_closed([night], ms("2026-11-20T23:00")) == ms("2026-11-21T06:00")


def test_an_opening_that_does_not_exist_moves_to_the_change_of_the_clock() -> None:
    early = window(only="02:30-04:00", zone="Europe/Zagreb")
    assert opening(ms("2026-03-29T01:00", "Europe/Zagreb"), early) == ms("2026-03-29T03:00", "Europe/Zagreb")
    skipped = window(only="02:15-02:45", zone="Europe/Zagreb")
    assert opening(ms("2026-03-29T01:00", "Europe/Zagreb"), skipped) == ms("2026-03-30T02:15", "Europe/Zagreb")


def test_times_that_exist_twice_are_open_twice() -> None:
    twice = window(only="02:15-02:45", zone="Europe/Zagreb")
    first, second = (ms("2026-10-25T02:15", "Europe/Zagreb", fold) for fold in (0, 1))
    assert second - first == HOUR
    assert opening(first - 1, twice) == first
    assert opening(first + HOUR // 2, twice) == second


def test_a_window_that_never_opens_is_known() -> None:
    never = [window(only="mon-fri"), window(only="sat,sun")]
    assert next_open(never, ms("2026-11-18T12:00")) is None
    assert longest_wait_ms(never) is None


def test_longest_wait_is_the_longest_closed_time_with_a_change_of_the_clock() -> None:
    assert longest_wait_ms([window(only="mon-fri 08:00-20:00")]) == (60 + 1) * HOUR
    assert longest_wait_ms([window(never="02:00-03:00")]) == 2 * HOUR
    assert longest_wait_ms([window(only="mon-sun")]) == 0


@pytest.mark.parametrize(("times", "longest"), [("08:00-08:10", 600_000 - 125), ("08:00-10:00", HOUR)])
def test_the_spread_ends_before_the_window_closes(times: str, longest: int) -> None:
    short = [window(only=times, spread="1h")]
    found = next_opening(short, ms("2026-11-18T07:00"))
    assert found is not None
    assert found.spread(short, 125) == longest


def test_an_opening_tells_about_the_time_before_it_and_in_it_only() -> None:
    found = next_opening([window(only="08:00-10:00")], ms("2026-11-18T07:00"))
    assert found == (ms("2026-11-18T07:00"), ms("2026-11-18T08:00"), ms("2026-11-18T10:00"))
    told = [found.tells(ms(f"2026-11-18T{hour:02}:00")) for hour in (6, 7, 8, 9, 10)]
    assert told == [False, True, True, True, False]


def test_a_window_is_written_as_it_was_given() -> None:
    given = window(only=["mon-fri 08:00-20:00", "sat"], never="fri 12:00-13:00", zone="Europe/Zagreb", spread="15m")
    assert given.describe() == "only mon-fri 08:00-20:00, sat and never fri 12:00-13:00 (Europe/Zagreb)"
    assert Window.model_validate(given.model_dump()) == given

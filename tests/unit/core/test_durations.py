from __future__ import annotations

import re

import pytest

from tarry.core.durations import format_duration, humanise, parse_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("2s", 2_000), ("1h30m", 5_400_000), ("1.5s", 1_500), ("3d", 259_200_000), ("0s", 0)],
)
def test_a_duration_is_read_as_people_write_it(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "2 s", "-2s", "2sec", "2s.", 5, None])
def test_what_is_no_duration_is_refused_with_what_would_be_one(text: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"`{text}`: use ms, s, m, h or d, as in 500ms, 2s or 1h30m")):
        parse_duration(text)


def test_less_than_a_millisecond_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter than a millisecond"):
        parse_duration("0.5ms")


@pytest.mark.parametrize(
    ("ms", "name", "said"),
    [
        (0, "0ms", "0ms"),
        (125, "125ms", "125ms"),
        (1_500, "1500ms", "1.5s"),
        (60_000, "1m", "1m"),
        (90_000, "90s", "1m 30s"),
        (86_400_000, "24h", "1d"),
        (100_800_000, "28h", "1d 4h"),
    ],
)
def test_names_use_one_unit_and_people_get_two(ms: int, name: str, said: str) -> None:
    assert format_duration(ms) == name
    assert humanise(ms) == said

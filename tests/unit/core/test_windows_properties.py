"""Properties of every window around both changes of the clock: never early, never outside, the spread in its bounds.

What is open is decided here by the wall clock, minute by minute, and not with the code under test.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core.decide import Failure, Review, Rulebook, Schedule, decide
from tarry.core.ladder import Ladder
from tarry.core.policy import Policy
from tarry.core.windows import DAYS, Window, next_open

ZONES = ("Europe/Zagreb", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca")
"""Changes at 2:00, at midnight, by half an hour, and in the month of Ramadan."""

LADDER = Ladder(levels=9)
PLAIN = {"name": "p", "schedule": ["2s"], "jitter": "30s", "max_retries": 1}
MINUTE = 60_000
MINUTES_AHEAD = 16 * 24 * 60


@cache
def clock_changes(zone: str) -> tuple[int, ...]:
    """The first moments of each offset in 2026 and 2027, in milliseconds."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    quarters = [start + timedelta(minutes=15 * step) for step in range(2 * 365 * 96)]
    offsets = [moment.astimezone(ZoneInfo(zone)).utcoffset() for moment in quarters]
    return tuple(
        round(moment.timestamp() * 1000)
        for moment, before, after in zip(quarters[1:], offsets, offsets[1:], strict=False)
        if before != after
    )


@st.composite
def spans(draw: st.DrawFn) -> str:
    days = draw(st.lists(st.sampled_from(DAYS), min_size=1, max_size=7, unique=True))
    start, end = draw(st.tuples(st.integers(0, 1439), st.integers(1, 1440)).filter(lambda pair: pair[0] != pair[1]))
    return f"{','.join(days)} {start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"


def windows(zone: str) -> st.SearchStrategy[Window]:
    some = st.lists(spans(), min_size=1, max_size=3)
    given_spans = st.one_of(
        st.fixed_dictionaries({"only": some}),
        st.fixed_dictionaries({"never": some}),
        st.fixed_dictionaries({"only": some, "never": some}),
    )
    spread = st.sampled_from(["0s", "90s", "15m", "7h"])
    return st.builds(
        lambda times, wide: Window.model_validate({**times, "zone": zone, "spread": wide}), given_spans, spread
    )


def is_open(window: Window, at_ms: int) -> bool:
    """By the text of the window alone."""
    local = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(window.zone))
    minute = local.hour * 60 + local.minute

    def inside(text: str) -> bool:
        days, _, times = text.partition(" ")
        start, end = (int(part[:2]) * 60 + int(part[3:]) for part in times.split("-"))
        today, before = DAYS[local.weekday()] in days, DAYS[local.weekday() - 1] in days
        if start < end:
            return today and start <= minute < end
        return (today and minute >= start) or (before and minute < end)

    allowed = window.only is None or any(inside(span.text) for span in window.only)
    return allowed and not any(inside(span.text) for span in window.never or ())


def by_minute(window: Window, at_ms: int) -> int | None:
    """The first open moment, found by looking at every minute."""
    if is_open(window, at_ms):
        return at_ms
    start = (at_ms // MINUTE + 1) * MINUTE
    return next((ms for ms in range(start, start + MINUTES_AHEAD * MINUTE, MINUTE) if is_open(window, ms)), None)


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=15)
@given(st.data())
def test_next_open_is_the_first_open_minute(zone: str, data: st.DataObject) -> None:
    window = data.draw(windows(zone))
    change = data.draw(st.sampled_from(clock_changes(zone)))
    at = change + data.draw(st.integers(-3 * 86_400_000, 86_400_000))

    found = next_open([window], at)

    assert found == by_minute(window, at)


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=60)
@given(st.data())
def test_decide_is_never_early_never_outside_and_keeps_to_the_spread(zone: str, data: st.DataObject) -> None:
    window = data.draw(windows(zone))
    policy = Policy.model_validate(PLAIN | {"window": [window]})
    change = data.draw(st.sampled_from(clock_changes(zone)))
    now = change + data.draw(st.integers(-3 * 86_400_000, 86_400_000))
    draw = data.draw(st.floats(0, 1, exclude_max=True))
    plain = Policy.model_validate(PLAIN)
    unmoved = decide(Failure("q"), Rulebook((plain,), LADDER, plain.tiers()), now, draw)
    assert isinstance(unmoved, Schedule)

    rules = Rulebook((policy,), LADDER, policy.tiers())
    for _ in range(2):  # so that it decides with what it remembers of other moments
        decide(Failure("q"), rules, now - data.draw(st.integers(-172_800_000, 172_800_000)), draw)
    decision = decide(Failure("q"), rules, now, draw)

    opens = next_open([window], unmoved.due_ms)
    if opens is None:
        assert isinstance(decision, Review)
        return
    assert isinstance(decision, Schedule)
    assert decision.due_ms == now + decision.itinerary.delay_ms
    assert is_open(window, decision.due_ms)
    if opens == unmoved.due_ms:
        assert decision == unmoved._replace(policy=policy)
    else:
        assert decision.moved_from_ms == unmoved.due_ms
        assert opens <= decision.due_ms < opens + window.spread + LADDER.granularity_ms

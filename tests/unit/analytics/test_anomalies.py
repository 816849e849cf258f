"""Anomalies in made-up histories: outages are found, once each, and ordinary days and nights are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tarry.analytics.anomalies import (
    FEWEST_RETURNS,
    HOUR,
    LEAST_RISE,
    HourCounts,
    Returns,
    Usual,
    begins,
    ends,
    usual_at,
)

START = datetime(2030, 1, 7, tzinfo=UTC)  # a Monday
Rate = Callable[[datetime], float]
"""How often retries fail at this time, apart from chance."""


def rhythm(moment: datetime) -> float:
    """An ordinary day: worse in the afternoon, and at three in the night while somebody's backup runs."""
    return 0.75 if moment.hour == 3 else 0.3 + 0.12 * math.sin((moment.hour - 9) / 24 * 2 * math.pi)


def volume(moment: datetime) -> float:
    """Returns an hour: hundreds by day, a few by night."""
    return 8 + 400 * max(0.0, math.sin((moment.hour - 6) / 24 * 2 * math.pi)) ** 2


def hours(days: int, seed: int, rate: Rate = rhythm, scale: float = 1.0) -> Iterator[HourCounts]:
    """Counts whose rate strays from day to day, and by chance."""
    chance = random.Random(seed)
    for number in range(days * 24):
        moment = START + number * HOUR
        returned = int(chance.gauss(1, 0.25) * volume(moment) * scale) if volume(moment) * scale > 1 else 0
        strays = min(1.0, max(0.0, rate(moment) + chance.gauss(0, 0.03)))
        yield HourCounts(moment, max(0, returned), sum(chance.random() < strays for _ in range(returned)))


def changes(found: list[HourCounts], *, since: int = 0) -> list[tuple[datetime, str]]:
    """When anomalies begin and end, looked at four times an hour."""
    is_open, seen, few = False, [], FEWEST_RETURNS / 2
    for place, one in list(enumerate(found))[max(1, since * 24) :]:
        before = found[place - 1]
        usual = usual_at(found[:place], one.starts) if is_open or before.returned + one.returned > few else None
        for share in (0.03, 0.2, 0.5, 1.0):
            now = Returns(before.returned + round(share * one.returned), before.failed + round(share * one.failed))
            moment = one.starts + share * HOUR
            if not is_open and begins(now, usual):
                is_open = True
                seen.append((moment, "began"))
            elif is_open and (why := ends(now, usual)):
                is_open = False
                seen.append((moment, why))
    return seen


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 0.5, 1.0, 5.0, 50.0]))
def test_an_ordinary_rhythm_of_two_weeks_has_no_anomaly(seed: int, scale: float) -> None:
    assert changes(list(hours(14, seed, scale=scale))) == []


@pytest.mark.parametrize("seed", range(3))
def test_usual_at_the_beginning_of_an_hour_is_that_of_the_hour_before(seed: int) -> None:
    """At four, what returned at three is nearly all that is judged."""
    assert changes(list(hours(14, seed, scale=50))) == []


def test_usual_at_the_beginning_of_a_day_is_not_that_of_the_rest_of_it() -> None:
    """Nothing returns in the hour before, so its rate is that of no other hour."""

    def morning(moment: datetime) -> float:
        return 0.05 if moment.hour == 9 else 0.6

    found = [one for one in hours(10, 1, morning) if 9 <= one.starts.hour < 18]
    usual = usual_at(found, START + timedelta(days=10, hours=9, minutes=5))

    assert usual is not None
    assert usual.rate == pytest.approx(0.05, abs=0.05)


def weekend(moment: datetime) -> float:
    """Another rhythm on Saturdays and Sundays."""
    return 0.6 if moment.weekday() >= 5 else rhythm(moment)


@pytest.mark.parametrize("seed", range(2))
def test_a_weekly_rhythm_has_no_anomaly_once_four_weeks_are_known(seed: int) -> None:
    assert changes(list(hours(42, seed, weekend)), since=29) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lasts", [2, 6])
def test_an_outage_is_one_anomaly_that_ends_by_itself(seed: int, lasts: int) -> None:
    began = START + timedelta(days=10, hours=10)

    def outage(moment: datetime) -> float:
        return 0.98 if began <= moment < began + lasts * HOUR else rhythm(moment)

    (begun, _), (ended, why) = changes(list(hours(14, seed, outage)))

    assert began <= begun <= began + HOUR
    assert began + lasts * HOUR <= ended <= began + (lasts + 2) * HOUR
    assert why == "the failure rate is near the usual one"


def test_an_anomaly_ends_when_nothing_returns_any_more() -> None:
    began = START + timedelta(days=10, hours=10)

    def outage(moment: datetime) -> float:
        return 0.98 if moment >= began else rhythm(moment)

    found = [
        one if one.starts < began + 3 * HOUR else one._replace(returned=0, failed=0) for one in hours(14, 1, outage)
    ]

    assert [what for _, what in changes(found)] == ["began", "too few retries return to tell"]


def test_nothing_begins_on_a_quiet_night_or_with_a_short_history() -> None:
    usual = Usual(0.1, 0.01)
    few = FEWEST_RETURNS - 1

    assert not begins(Returns(few, few), usual)
    assert begins(Returns(few + 1, few), usual)
    assert not begins(Returns(few + 1, few), None)
    assert usual_at(hours(4, 1), START + timedelta(days=4)) is None
    assert usual_at(hours(6, 1), START + timedelta(days=6)) is not None


def test_the_same_hour_counts_and_with_few_of_them_all_hours_do() -> None:
    found = [one for one in hours(10, 1) if 1 <= one.starts.hour <= 3 or one.starts.hour >= 12]
    day = START + timedelta(days=10)

    night = usual_at(found, day + timedelta(hours=3, minutes=20))
    morning = usual_at(found, day + timedelta(hours=9))

    assert night is not None
    assert night.rate == pytest.approx(0.5, abs=0.12)  # of two and three together
    assert morning is not None
    assert 0.2 < morning.rate < 0.5
    assert morning.deviation >= 0.03


def test_the_window_itself_does_not_tell_what_is_usual() -> None:
    found = list(hours(7, 1))
    moment = found[-1].starts + HOUR / 2
    spoiled = [*found[:-2], *(one._replace(failed=one.returned) for one in found[-2:])]

    assert usual_at(found, moment) == usual_at(spoiled, moment)


def test_the_limit_is_farther_away_for_fewer_returns() -> None:
    usual = Usual(0.3, 0.0)

    assert usual.limit(10_000) == pytest.approx(0.3 + LEAST_RISE)
    assert usual.limit(50) > usual.limit(100) > usual.limit(1_000)
    assert Usual(0.3, 0.1).limit(10_000) > 0.79


def test_failures_of_earlier_returns_do_not_make_a_rate_above_one() -> None:
    assert Returns(10, 25).rate == 1
    assert Returns().rate == 0

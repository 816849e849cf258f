"""Whether retries fail far more often than is usual at this time of the day or week. Pure.

The failure rate is the share of returns that failed again. It is compared with the same hours of earlier days: the
median says what is usual, and the median absolute deviation how far it usually strays. An anomaly needs a minimum
number of returns, and a rate that chance hardly gives; it ends once the rate is nearer to the usual one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import NamedTuple

HOUR = timedelta(hours=1)

WINDOW = 2
"""The rate is that of the hour in progress and the one before: a failure can come in a later hour than its return."""

FEWEST_RETURNS = 50
"""In the window, for an anomaly to begin; half of it for one to go on."""

FEWEST_IN_SAMPLE = 5
"""Returns that an earlier window must have to tell what is usual."""

FEWEST_SAMPLES = 5
"""Earlier days with the same hour; with fewer, all hours of all days are compared."""

FEWEST_WEEKS = 4
"""From then on, the same hour of the week is compared."""

LONGEST_PAST = timedelta(weeks=8)

DEVIATIONS = 5.0
"""Standard deviations above the usual rate."""

LEAST_RISE = 0.15
"""An anomaly is at least so much above the usual rate."""

OF_NORMAL = 1.4826
"""The standard deviation of a normal distribution, by its median absolute deviation."""

CERTAIN = 0.02
"""A usual rate nearer to 0 or 1 counts as this one when it is asked what chance gives."""


class Kind(StrEnum):
    """What the rate is that of."""

    QUEUE = "queue"
    POLICY = "policy"
    """Of its queues that have too few returns to be judged on their own."""


class HourCounts(NamedTuple):
    """What happened in an hour."""

    starts: datetime
    returned: int
    failed: int


class Returns(NamedTuple):
    """What happened in a window."""

    returned: int = 0
    failed: int = 0

    @property
    def rate(self) -> float:
        """The share that failed. A failure can come in a later window than its return."""
        return self.failed / max(self.returned, self.failed, 1)


class Usual(NamedTuple):
    """What is usual at this time."""

    rate: float
    deviation: float
    """Standard deviation of the rate, from one day to another."""

    def limit(self, returned: int) -> float:
        """The rate above which it is an anomaly. With fewer returns, chance gives higher rates."""
        share = min(max(self.rate, CERTAIN), 1 - CERTAIN)
        by_chance = share * (1 - share) / max(1, returned)
        return self.rate + max(LEAST_RISE, DEVIATIONS * math.sqrt(self.deviation**2 + by_chance))


def may_begin(now: Returns) -> bool:
    """Whether it is worth asking what is usual."""
    return now.returned >= FEWEST_RETURNS and now.rate > LEAST_RISE


def begins(now: Returns, usual: Usual | None) -> bool:
    return usual is not None and may_begin(now) and now.rate > usual.limit(now.returned)


def ends(now: Returns, usual: Usual | None) -> str | None:
    """Why an anomaly is over; None if it goes on."""
    if now.returned < FEWEST_RETURNS / 2:
        return "too few retries return to tell"
    if usual is None:
        return "nobody knows any more what is usual"
    if now.rate <= (usual.rate + usual.limit(now.returned)) / 2:
        return "the failure rate is near the usual one"
    return None


def usual_at(hours: Iterable[HourCounts], moment: datetime) -> Usual | None:
    """What is usual at this moment, by the hours before its window; None if they do not tell.

    When an hour begins, the window has little more than the hour before; when it ends, it has both. The usual rate is
    the higher one of the two, so an hour that always fails more is usual for as long as the window has it.
    """
    this = moment.replace(minute=0, second=0, microsecond=0)
    past = {one.starts: one for one in hours if one.starts <= this - WINDOW * HOUR}
    both, alone = _usual(_windows(past), this), _hours_before(past)
    before = _usual(alone, this)
    if both is None or before is None or sum(starts.hour == this.hour for starts in alone) < FEWEST_SAMPLES:
        return both
    return both._replace(rate=max(both.rate, before.rate))


def _usual(windows: Mapping[datetime, float], this: datetime) -> Usual | None:
    days = {starts.date() for starts in windows}
    if len(days) < FEWEST_SAMPLES:
        return None
    by_hour: dict[int, list[float]] = defaultdict(list)
    for starts, rate in windows.items():
        by_hour[starts.hour].append(rate)
    middles = {hour: median(rates) for hour, rates in by_hour.items()}
    everywhere = median(abs(rate - middles[starts.hour]) for starts, rate in windows.items())
    samples = _samples(windows, by_hour, this)
    usual = median(samples)
    here = median(abs(rate - usual) for rate in samples)
    return Usual(usual, OF_NORMAL * max(here, everywhere))


def _windows(hours: Mapping[datetime, HourCounts]) -> dict[datetime, float]:
    """The rate of each hour together with the one before, by the later one."""
    found = {}
    for starts, one in hours.items():
        before = hours.get(starts - HOUR, HourCounts(starts, 0, 0))
        returns = Returns(one.returned + before.returned, one.failed + before.failed)
        if returns.returned >= FEWEST_IN_SAMPLE:
            found[starts] = returns.rate
    return found


def _hours_before(hours: Mapping[datetime, HourCounts]) -> dict[datetime, float]:
    """The rate of each hour alone, by the one after it."""
    return {
        starts + HOUR: Returns(one.returned, one.failed).rate
        for starts, one in hours.items()
        if one.returned >= FEWEST_IN_SAMPLE
    }


def _samples(windows: Mapping[datetime, float], by_hour: Mapping[int, list[float]], this: datetime) -> Sequence[float]:
    """The same hour of the week once there are four weeks, else the same hour of the day, else all hours."""
    of_week = [rate for starts, rate in windows.items() if (this - starts) % timedelta(weeks=1) == timedelta(0)]
    if min(windows) <= this - FEWEST_WEEKS * timedelta(weeks=1) and len(of_week) >= FEWEST_WEEKS:
        return of_week
    of_day = by_hour.get(this.hour, [])
    return of_day if len(of_day) >= FEWEST_SAMPLES else list(windows.values())

"""Looks for anomalies, one after the other: what they read from Postgres, what begins and what ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tarry.analytics.anomalies import HOUR, HourCounts
from tarry.audit.anomalies import AnomalyWatch
from tarry.store.database import PostgresSession, Row
from tests.unit.analytics.test_anomalies import START, Rate, hours, rhythm

NOW = datetime(2030, 1, 31, 12, 5, tzinfo=UTC)


class Store:
    """Answers as Postgres does with small queues of one policy, of which a tenth of the returns failed in the past."""

    def __init__(self) -> None:
        self.now = NOW
        self.queues = ["a", "b", "c"]
        self.asked: Counter[str] = Counter()

    async def rows(self, name: str, /, **parameters: Any) -> list[Row]:
        self.asked[name] += 1
        match name:
            case "anomaly_window":
                return [(queue, "gold", 40, 8) for queue in self.queues]
            case "anomaly_hours_of_policy":
                hour = self.now.replace(minute=0)
                return [(hour - timedelta(days=day), 100, 10) for day in range(1, 8)]
        assert name == "open_anomalies", parameters
        return []

    async def one(self, name: str, /, **_: Any) -> Row | None:
        if name == "clock":
            return (self.now,)
        return (1, 1, 0, 0, 0, self.now, 0, None, None, None, self.now, 0, 0, self.now)


def test_look_reads_what_is_usual_for_a_policy_once_an_hour() -> None:
    """Which of its queues have few returns changes all the time, and its past can be that of a thousand queues."""
    store, watch = Store(), AnomalyWatch("web-1")

    def look() -> int:
        asyncio.run(watch.look(cast("PostgresSession", store)))
        return store.asked["anomaly_hours_of_policy"]

    assert look() == 1
    store.queues.append("d")
    assert look() == 1
    store.now += timedelta(hours=1)
    assert look() == 2


class Weeks(Store):
    """The same with one queue, as it was at each moment; remembers what began and ended."""

    def __init__(self, found: Iterable[HourCounts]) -> None:
        super().__init__()
        self._hours = {one.starts: one for one in found}
        self._open: Row | None = None
        self.seen: list[tuple[str, datetime]] = []

    async def rows(self, name: str, /, **parameters: Any) -> list[Row]:
        match name:
            case "anomaly_window":
                some = [
                    self._so_far(one) for one in self._hours.values() if parameters["since"] <= one.starts <= self.now
                ]
                return [("orders", "gold", sum(one.returned for one in some), sum(one.failed for one in some))]
            case "anomaly_hours_of_queues":
                since, until = parameters["since"], parameters["until"]
                return [("orders", *one) for one in self._hours.values() if since <= one.starts < until]
        assert name == "open_anomalies"
        return [] if self._open is None else [self._open]

    def _so_far(self, one: HourCounts) -> HourCounts:
        share = min(1.0, (self.now - one.starts) / HOUR)
        return one._replace(returned=round(share * one.returned), failed=round(share * one.failed))

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        return None if name == "anomaly_error" else await super().one(name, **parameters)

    async def change(self, name: str, /, **about: Any) -> int:
        if name != "keep_anomaly":
            self.seen.append((name, self.now))
            now = (about["rate"], about["rate"], about["rate"], about["returned"], about["failed"])
            self._open = ("queue", "orders", self.now, *now, None) if name == "begin_anomaly" else None
        return 1


def two_weeks(scale: float, rate: Rate = rhythm) -> list[tuple[str, datetime]]:
    """What a service that looks every ten minutes finds."""
    store, watch = Weeks(hours(14, 4, rate, scale)), AnomalyWatch("web-1")

    async def look() -> None:
        for number in range(14 * 144):
            store.now = START + number * timedelta(minutes=10)
            await watch.look(cast("PostgresSession", store))

    asyncio.run(look())
    return store.seen


@pytest.mark.parametrize("scale", [0.5, 5.0, 50.0])
def test_look_finds_nothing_in_two_weeks_of_an_ordinary_rhythm(scale: float) -> None:
    assert two_weeks(scale) == []


@pytest.mark.parametrize("scale", [0.5, 5.0, 50.0])
def test_look_finds_an_outage_in_two_weeks_once(scale: float) -> None:
    began = START + timedelta(days=10, hours=10)

    def outage(moment: datetime) -> float:
        return 0.98 if began <= moment < began + 4 * HOUR else rhythm(moment)

    (first, begun), (last, ended) = two_weeks(scale, outage)

    assert (first, last) == ("begin_anomaly", "end_anomaly")
    assert began < begun <= began + HOUR
    assert began + 4 * HOUR <= ended <= began + 6 * HOUR

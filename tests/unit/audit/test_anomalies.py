"""What a look for anomalies reads from Postgres."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import cast

from tarry.audit.anomalies import AnomalyWatch
from tarry.store.database import PostgresSession, Row

NOW = datetime(2030, 1, 31, 12, 5, tzinfo=UTC)


class Store:
    """Answers as Postgres does with small queues of one policy, of which a tenth of the returns failed in the past."""

    def __init__(self) -> None:
        self.now = NOW
        self.queues = ["a", "b", "c"]
        self.asked: Counter[str] = Counter()

    async def rows(self, name: str, /, **_: object) -> list[Row]:
        self.asked[name] += 1
        match name:
            case "anomaly_window":
                return [(queue, "gold", 40, 8) for queue in self.queues]
            case "anomaly_hours_of_policy":
                hour = self.now.replace(minute=0)
                return [(hour - timedelta(days=day), 100, 10) for day in range(1, 8)]
        return []

    async def one(self, name: str, /, **_: object) -> Row | None:
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

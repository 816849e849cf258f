"""Measures how many messages wait in tiers, through the management API, every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.core.names import Names
from tarry.errors import BrokerError
from tarry.tasks import in_thread, sleep_unless

log = structlog.get_logger()

ASK_EVERY = 10.0
TIMEOUT = 8


class DepthCollector(Collector):
    """`retry_queue_depth`: absent, rather than wrong, while the number is not known."""

    def __init__(self) -> None:
        self.waiting: int | None = None

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        if self.waiting is not None:
            family.add_metric([], self.waiting)
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        text = "Messages waiting in tiers; absent while the management API does not answer."
        return GaugeMetricFamily("retry_queue_depth", text)


async def measure(depth: DepthCollector, address: Address, names: Names, stop: asyncio.Event) -> None:
    """Runs until `stop` is set."""
    while True:
        try:
            depth.waiting = await in_thread(lambda: waiting_in_tiers(address, names), "depth")
        except BrokerError as error:
            if depth.waiting is not None:
                log.warning("tier depths not known", reason=str(error))
            depth.waiting = None
        if await sleep_unless(stop, ASK_EVERY):
            return


def waiting_in_tiers(address: Address, names: Names) -> int:
    queues = Management(address, timeout=TIMEOUT).queues()
    return sum(int(one.get("messages") or 0) for one in queues if names.is_waiting_queue(one["name"]))

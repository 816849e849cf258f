"""How many messages wait in tiers, asked of the management API every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tarry.broker.address import Address
from tarry.broker.management import Management
from tarry.core.names import Names
from tarry.errors import BrokerError
from tarry.router.keep import sleep_unless
from tarry.router.threads import in_thread

log = structlog.get_logger()

ASK_EVERY = 10.0
TIMEOUT = 8


class Depth(Collector):
    """`retry_queue_depth`: a metric that is absent, rather than wrong, while nobody can tell."""

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


async def measure(depth: Depth, address: Address, names: Names, stop: asyncio.Event) -> None:
    """Until `stop`."""
    while True:
        try:
            depth.waiting = await in_thread(lambda: waiting_in_tiers(address, names), "depth")
        except BrokerError as error:
            if depth.waiting is not None:
                log.warning("the depth of the tiers is not known", reason=str(error))
            depth.waiting = None
        if await sleep_unless(stop, ASK_EVERY):
            return


def waiting_in_tiers(address: Address, names: Names) -> int:
    tiers = (f"{names.prefix}delay.", f"{names.prefix}ladder.")
    queues = Management(address, timeout=TIMEOUT).queues()
    return sum(int(one.get("messages") or 0) for one in queues if one["name"].startswith(tiers))

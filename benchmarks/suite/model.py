"""How much of everything a load needs, from what a run measured. Pure.

One retry costs so much processor time in the router, in the broker and in Postgres; and one queue, which is one process
of the broker, carries so much and no more. Everything else follows by division.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.suite.samples import HUNDRED_THOUSAND, Samples

BUSY = 0.6
"""No core is planned to be busier than this: drift grows fast beyond."""


@dataclass(frozen=True)
class Model:
    """Processor seconds for one retry, and messages per second through one queue."""

    router_s: float
    broker_s: float
    postgres_s: float
    tier_per_s: float
    """What one tier gives back in a second, through the whole way home."""
    replicated_s: float | None
    """For one retry over all nodes of three, where that was measured."""

    @classmethod
    def fitted(cls, found: Samples) -> Model | None:
        """None where the run has not measured enough."""
        one = [found.spread("end to end", "tarry", f"cpu_{part}_s") for part in ("own", "broker", "postgres")]
        tier = found.spread("drain", "whole way", "per_s")
        three = found.spread("cluster", "3 nodes", "cpu_broker_s")
        own, broker, postgres = (None if spread is None else spread.median / HUNDRED_THOUSAND for spread in one)
        if own is None or broker is None or postgres is None or tier is None:
            return None
        return cls(own, broker, postgres, tier.median, three.median / HUNDRED_THOUSAND if three else None)

    def needs(self, per_s: float) -> Needs:
        broker = self.replicated_s or self.broker_s
        return Needs(
            routers=math.ceil(per_s * self.router_s / BUSY),
            broker_cores=math.ceil(per_s * broker / BUSY),
            postgres_cores=math.ceil(per_s * self.postgres_s / BUSY),
            queues=math.ceil(per_s / (BUSY * self.tier_per_s)),
        )

    def walls(self) -> dict[str, float]:
        """Retries per second at which each part needs its second: the least of them is the first wall."""
        return {
            "router": BUSY / self.router_s,
            "one tier, relay or tap queue": BUSY * self.tier_per_s,
            "Postgres core": BUSY / self.postgres_s,
            "broker core": BUSY / (self.replicated_s or self.broker_s),
        }


@dataclass(frozen=True)
class Needs:
    """For one load."""

    routers: int
    broker_cores: int
    postgres_cores: int
    queues: int
    """Into how many a tier that takes all of the load would have to be divided."""

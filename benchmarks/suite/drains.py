"""Many messages due in the same instant, and how long the way home takes them: the whole of it, and cut short.

A tier is filled with messages whose own expiration ends in one and the same moment. Where it dead-letters to decides
how much of the way home they go.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pika

from benchmarks.contenders.marks import ARRIVED
from benchmarks.contenders.protocol import Job
from benchmarks.contenders.running import BrokenError, Running
from benchmarks.contenders.tarry import Tarry
from benchmarks.router.stage import ORIGIN, Space, Stage
from benchmarks.suite.bench import LONG_S
from benchmarks.suite.planned import BATCH, Planner, publish_all, write_store
from benchmarks.suite.processes import cpu_seconds
from benchmarks.suite.samples import percentile
from tarry.amqp.publisher import Publisher
from tarry.core.names import Destination

PATIENCE = 60.0
FILLED_PER_S = 4_000
"""A slow guess at how fast a tier is filled: the common due moment lies behind it."""

BARE, WHOLE, READ = "bare tier", "whole way", "whole way, tap read"


@dataclass(frozen=True)
class Way:
    """Where a tier dead-letters to, and what that adds to the way before."""

    name: str
    adds: str
    exchange: str
    key: str | None = None
    serving: bool = False


def ways(space: Space) -> list[Way]:
    """Each a step longer than the one before; the last two are what really happens."""
    names, top = space.topology.broker_names, space.topology.ladder_shape.levels - 1
    return [
        Way(BARE, "nothing: straight to the origin queue", "", ORIGIN),
        Way("deliver", "the deliver exchange, found by a BCC key", names.deliver),
        Way("tap", "a copy into the tap's queue", names.arrive),
        Way("relay", "the relay queue and the held gate", names.relay),
        Way(WHOLE, "the cancelled gate and the ladder's exchanges", names.ladder(top)),
        Way(READ, "the service reads the tap and writes each return", names.ladder(top), serving=True),
    ]


@contextlib.contextmanager
def scene(on: Stage) -> Iterator[Running]:
    """A space with the topology, the origin bound, and a consumer on the origin queue."""
    tarry = Tarry()
    with on.space(f"{LONG_S}s") as space:
        names = space.topology.broker_names
        with pika.BlockingConnection(space.address.parameters("benchmark")) as connection:
            connection.channel().queue_bind(ORIGIN, names.deliver, Destination("queue", ORIGIN).key)
        one = Running(tarry, space, Job(LONG_S))
        tarry.prepare(space, one.job)
        one.watch()
        try:
            yield one
        finally:
            one.stop()


def drain(on: Stage, one: Running, way: Way, count: int) -> dict[str, float]:
    """Messages per second from the due moment to the last arrival, how late they were, and the broker's own work."""
    _declare(one.space, way)
    before = one.arrived()
    if way.serving:
        one.start()
    try:
        due = asyncio.run(_fill(one.space, way, count))
        began = cpu_seconds(on.broker_pids)
        one.wait(one.arrived, before + count, PATIENCE)
        broker_s = cpu_seconds(on.broker_pids) - began
    finally:
        if way.serving:
            one.stop_work()
    late = [at - due for at, _ in one.marks.read(ARRIVED)[before : before + count]]
    if late[0] < -0.05:
        raise BrokenError(f"the first came {-late[0]:.2f} s before it was due")
    return {
        "per_s": count / late[-1],
        "seconds": late[-1],
        "p50_ms": percentile(late, 0.5) * 1000,
        "p99_ms": percentile(late, 0.99) * 1000,
        "max_ms": late[-1] * 1000,
        "broker_us": broker_s / count * 1e6,
    }


def _declare(space: Space, way: Way) -> None:
    arguments = {
        "x-queue-type": "quorum",
        "x-message-ttl": 600_000,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": way.exchange,
        "x-dead-letter-strategy": "at-least-once",
        "x-delivery-limit": 1_000_000,
        **({"x-dead-letter-routing-key": way.key} if way.key else {}),
    }
    tier = tier_of(way)
    with pika.BlockingConnection(space.address.parameters("benchmark")) as connection:
        channel = connection.channel()
        channel.exchange_declare(tier, "fanout", durable=True)
        channel.queue_declare(tier, durable=True, arguments=arguments)
        channel.queue_bind(tier, tier)
        channel.queue_purge(space.topology.broker_names.audit)


def tier_of(way: Way) -> str:
    return f"bench.tier.{way.name}"


async def _fill(space: Space, way: Way, count: int) -> float:
    """The moment in which all of them are due."""
    planner = Planner(space)
    plans = [planner.plan() for _ in range(count)]
    if way.serving:
        await write_store(space, planner, plans)
    messages = [planner.message(plan) for plan in plans]
    publisher = await Publisher.open(space.address, "benchmark: tier")
    due = time.time() + 2 + count / FILLED_PER_S
    for start in range(0, count, BATCH):
        batch = messages[start : start + BATCH]
        for message in batch:
            message.exchange = tier_of(way)
            message.properties.expiration = b"%d" % max(0, round((due - time.time()) * 1000))
        await publish_all(publisher, batch)
    await publisher.link.close()
    if time.time() > due:
        raise BrokenError("the tier could not be filled before the first was due")
    return due

"""What a lane is worth: retries of a critical policy while 20,000 retries of another one come due in one instant, with
a lane and without, taking turns. Each policy returns to an attached queue of its own, which has a consumer.

python -m benchmarks.lanes [--quick] [--broker SERIES]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import dataclass

from benchmarks.lanes.bulk import bulk_consumer
from benchmarks.router.own import Serving, serving
from benchmarks.router.stage import Space, stage
from benchmarks.suite.samples import percentile
from tarry.amqp.consumer import Consumer
from tarry.amqp.declare import channel
from tarry.amqp.field_tables import entry, pick
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.contract import headers as h
from tarry.core.names import Destination
from tarry.topology.apply import apply, declare
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.load import load
from tarry.topology.rights import deploy_rights

CRITICAL, BULK = "critical.orders", "bulk.orders"
POLICIES = """
[[policy]]
name = "critical"
match = {{ queue = "critical.*" }}
schedule = ["2s"]
jitter = "2s"
max_retries = 3
{lane}
[[policy]]
name = "bulk"
match = {{ queue = "bulk.*" }}
schedule = ["30m"]
max_retries = 3
"""
PER_SECOND = 50
"""Critical requests, from a few seconds before the instant until the bulk is back."""

UNDER_MS = 100
"""Drift of the critical ones at the 99th percentile, with a lane."""

PATIENCE = 120.0
BODY = bytes(range(256)) * 2
_DUE = h.DUE.encode()


@dataclass(frozen=True)
class Run:
    """Drift in milliseconds of the critical retries that came due between the instant and the end of the bulk."""

    critical: int
    p50: float
    p99: float
    most: float
    bulk_s: float
    """From the instant to the last return of the bulk."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, and 5,000 in the instant")
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    parser.add_argument("--rounds", type=int, help="default: 3")
    arguments = parser.parse_args()
    rounds, count = (1, 5_000) if arguments.quick else (3, 20_000)
    found: dict[str, list[Run]] = {"without": [], "with": []}
    with stage(arguments.broker) as on:
        for _ in range(arguments.rounds or rounds):
            for name, lane in (("without", ""), ("with", 'lane = "critical"\n')):
                with on.space("30m") as space:
                    found[name].append(measure(space, lane, count))
        version = on.broker.version
    p99 = {name: statistics.median(run.p99 for run in runs) for name, runs in found.items()}
    kept = p99["with"] < UNDER_MS
    shown = {
        "broker": version,
        "cores": os.cpu_count(),
        "in_one_instant": count,
        "drift_ms": {name: [vars(run) for run in runs] for name, runs in found.items()},
        "p99_ms": p99,
        "without_to_with": round(p99["without"] / max(1.0, p99["with"]), 1),
        "kept": kept,
    }
    print(json.dumps(shown, indent=2))
    return 0 if kept else 1


def measure(space: Space, lane: str, count: int) -> Run:
    (space.folder / "tarry.toml").write_text(POLICIES.format(lane=lane), encoding="utf-8")
    topology = load(space.folder)
    apply(topology, space.address)
    with channel(space.address, "benchmark", deploy_rights(topology)) as opened:
        for queue in (CRITICAL, BULK):
            opened.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            attached = destination_blueprint(topology.broker_names, Destination("queue", queue), topology.lanes)
            declare(opened, attached)
    with serving(space) as service, bulk_consumer(space.address, BULK, count) as ended:
        return asyncio.run(_measure(space, service, count, ended))


async def _measure(space: Space, service: Serving, count: int, ended: multiprocessing.Queue[float]) -> Run:
    publisher = await Publisher.open(space.address, "benchmark: load")
    consumer = await Consumer.open(space.address, CRITICAL, "benchmark: critical")
    try:
        instant_ms = await _schedule_bulk(publisher, service, count)
        seen: list[tuple[int, int]] = []
        watching = asyncio.create_task(_watch(consumer, seen))
        await asyncio.sleep(max(0.0, instant_ms / 1000 - 6 - time.time()))
        loading = asyncio.create_task(_load(publisher))
        last_s = await asyncio.to_thread(ended.get, timeout=PATIENCE)
        loading.cancel()
        await asyncio.sleep(5)  # until those that are due by then are back
        watching.cancel()
    finally:
        await asyncio.gather(publisher.link.close(), consumer.link.close())
    late = sorted(float(at - due) for at, due in seen if instant_ms <= due <= last_s * 1000)
    return Run(len(late), percentile(late, 0.5), percentile(late, 0.99), late[-1], round(last_s - instant_ms / 1000, 2))


async def _schedule_bulk(publisher: Publisher, service: Serving, count: int) -> int:
    """Requests that all ask for the same due moment; returns it, once all of them wait."""
    instant_ms = int(time.time() * 1000) + 20_000 + count
    hint = entry("error_class", "rate_limited") + entry("next_retry_at_ms", instant_ms)
    for start in range(0, count, 1_000):
        await _send(publisher, BULK, range(start, min(start + 1_000, count)), hint)
    await asyncio.to_thread(service.wait_scheduled, count)
    if time.time() > instant_ms / 1000 - 7:
        raise RuntimeError("the bulk was not scheduled in time: this machine is too busy")
    return instant_ms


async def _load(publisher: Publisher) -> None:
    started, sent = time.monotonic(), 0
    while True:
        until = int((time.monotonic() - started) * PER_SECOND) + 1
        await _send(publisher, CRITICAL, range(sent, until), b"")
        sent = until
        await asyncio.sleep(0.02)


async def _send(publisher: Publisher, queue: str, numbers: range, more: bytes) -> None:
    messages = []
    for number in numbers:
        properties = Properties(
            headers=entry("original_queue", queue) + more, delivery_mode=PERSISTENT, message_id=b"%d" % number
        )
        messages.append(Message("retry.intake", queue, properties, BODY, f"{queue}-{number}"))
    outcomes = await publisher.publish(messages) if messages else []
    if set(outcomes) - {PublishOutcome.CONFIRMED}:
        raise RuntimeError(f"the broker did not take every request: {set(outcomes)}")


async def _watch(consumer: Consumer, seen: list[tuple[int, int]]) -> None:
    """The arrival and the due moment of each."""
    async for batch in consumer.batches():
        for one in batch:
            due = pick(one.properties.headers or b"", {_DUE})[_DUE].integer() or 0
            seen.append((consumer.arrived_ms(one.tag), due))
        consumer.ack([one.tag for one in batch])


if __name__ == "__main__":
    sys.exit(main())

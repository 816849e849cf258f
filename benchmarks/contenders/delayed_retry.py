"""RabbitMQ 4.3's own delayed retry: a quorum queue that keeps what its consumer rejects."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pika

from benchmarks.contenders.protocol import Command, Facts, Job, own_module
from benchmarks.router.stage import Space

QUEUE = "bench.delayed"


@dataclass
class DelayedRetry:
    """Nothing between broker and consumer: the nearest to a ceiling that there is."""

    slug: str = "delayed-retry"
    name: str = "RabbitMQ 4.3 delayed retry"
    size: int = 150_000
    broker: bool = True
    furnished: bool = False
    due_header: str | None = None
    facts: Facts = field(
        default_factory=lambda: Facts(
            durable="yes: a quorum queue",
            delays="one minimum for the whole queue, times the delivery count, up to a maximum; no other choice "
            "over AMQP 0-9-1; RabbitMQ 4.3 and newer, quorum queues only",
            same_queue="yes: it never leaves it",
            audit="no; no cancel, no reason, no review",
        )
    )
    settings: Mapping[str, str] = field(
        default_factory=lambda: {
            "queue": "quorum, x-delayed-retry-type all, x-delayed-retry-min and -max the delay",
            "consumer": "tarry's client on pika's asyncio connection, prefetch 2,000, basic.reject with requeue",
        }
    )

    def versions(self) -> dict[str, str]:
        return {one: importlib.metadata.version(one) for one in ("pika", "uvloop")}

    def prepare(self, space: Space, job: Job) -> None:
        arguments = {
            "x-queue-type": "quorum",
            "x-delayed-retry-type": "all",
            "x-delayed-retry-min": job.delay_s * 1_000,
            "x-delayed-retry-max": job.delay_s * 1_000,
        }
        with pika.BlockingConnection(space.address.parameters("benchmark")) as connection:
            channel = connection.channel()
            channel.queue_declare(QUEUE, durable=True, arguments=arguments)
            channel.exchange_declare(QUEUE, "fanout", durable=True)
            channel.queue_bind(QUEUE, QUEUE)

    def send(self, _space: Space, job: Job, count: int, per_second: int) -> Command:
        return own_module("requests", QUEUE, count, job.body, per_second)

    def work(self, _space: Space, _job: Job) -> Sequence[Command]:
        return [own_module("rejecting")]

    def environment(self, _space: Space, _job: Job, _place: int) -> dict[str, str]:
        return {}

"""The router's loop on aio-pika: same topology, same batches, same decision, same statements in Postgres."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pika

from benchmarks.contenders.protocol import Command, Facts, Job, own_module
from benchmarks.router.stage import ORIGIN, Space
from tarry.contract.headers import DUE
from tarry.core.names import Destination


@dataclass
class AioLoop:
    """What tarry would be with the better known client."""

    slug: str = "aio-pika"
    name: str = "aio-pika router loop"
    size: int = 15_000
    broker: bool = True
    furnished: bool = True
    due_header: str | None = DUE
    facts: Facts = field(
        default_factory=lambda: Facts(
            durable="yes: tarry's tiers",
            delays="any, by tarry's tiers",
            same_queue="yes",
            audit="the same as tarry's: claims, records and returns; no log, no metrics",
        )
    )
    settings: Mapping[str, str] = field(
        default_factory=lambda: {
            "program": "benchmarks/router/on_aio_pika.py, one process, uvloop",
            "batches": "up to 500, four at a time, every publish confirmed; the tap read by a connection of its own",
        }
    )

    def versions(self) -> dict[str, str]:
        return {one: importlib.metadata.version(one) for one in ("aio-pika", "aiormq", "psycopg", "uvloop")}

    def prepare(self, space: Space, _job: Job) -> None:
        names = space.topology.broker_names
        with pika.BlockingConnection(space.address.parameters("benchmark")) as connection:
            connection.channel().queue_bind(ORIGIN, names.deliver, Destination("queue", ORIGIN).key)

    def send(self, space: Space, job: Job, count: int, per_second: int) -> Command:
        return own_module("requests", space.topology.broker_names.intake, count, job.body, per_second)

    def work(self, _space: Space, _job: Job) -> Sequence[Command]:
        return [own_module("aio_router")]

    def environment(self, space: Space, _job: Job, _place: int) -> dict[str, str]:
        return space.environment

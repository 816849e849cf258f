"""A table of tasks and a loop that looks for those that are due: as it is usually written, and as well as it can be."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pika
import psycopg

from benchmarks.contenders.protocol import Command, Facts, Job, own_module, poll_environment
from benchmarks.router.stage import Space

REQUESTS = "bench.requests"
DUE = "due-ms"
FACTS = Facts(
    durable="yes: rows in Postgres; nothing comes back while the scheduler or Postgres is down",
    delays="any, seen at the next poll",
    same_queue="yes, published anew",
    audit="the task's row: when it was due and when it was sent",
)


@dataclass
class Poller:
    """Requests come from a quorum queue, as tarry's do."""

    slug: str
    name: str
    size: int
    settings: Mapping[str, str]
    program: str
    facts: Facts = FACTS
    broker: bool = False
    furnished: bool = False
    due_header: str | None = DUE

    def versions(self) -> dict[str, str]:
        return {one: importlib.metadata.version(one) for one in ("pika", "psycopg")}

    def prepare(self, space: Space, _job: Job) -> None:
        with pika.BlockingConnection(space.address.parameters("benchmark")) as connection:
            channel = connection.channel()
            channel.queue_declare(REQUESTS, durable=True, arguments={"x-queue-type": "quorum"})
            channel.exchange_declare(REQUESTS, "fanout", durable=True)
            channel.queue_bind(REQUESTS, REQUESTS)
        with psycopg.connect(space.dsn) as sql:
            sql.execute((Path(__file__).parent / "apps" / "schema.sql").read_bytes())

    def send(self, _space: Space, job: Job, count: int, per_second: int) -> Command:
        return own_module("requests", REQUESTS, count, job.body, per_second)

    def work(self, _space: Space, _job: Job) -> Sequence[Command]:
        return [own_module(self.program)]

    def environment(self, _space: Space, job: Job, _place: int) -> dict[str, str]:
        return poll_environment(job)


USUAL = Poller(
    "polling-usual",
    "polling scheduler, usual",
    4_000,
    {
        "intake": "pika's blocking consumer, prefetch 100, one INSERT and commit for each request, then its ack",
        "poll": "every 10 s: all that is due, one at a time: publish confirmed, UPDATE, commit",
        "processes": "1, intake and poll in a thread each",
    },
    "usual_poller",
)
TUNED = Poller(
    "polling-tuned",
    "polling scheduler, tuned",
    90_000,
    {
        "intake": "tarry's own client on pika's asyncio connection, batches of up to 500, one INSERT for each batch",
        "poll": "every 1 s, and again at once while batches are full: FOR UPDATE SKIP LOCKED, 500 at a time, published "
        "confirmed, one UPDATE, commit",
        "processes": "1, uvloop",
    },
    "tuned_poller",
)

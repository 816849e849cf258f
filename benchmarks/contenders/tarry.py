"""tarry itself: `tarry serve` as a process, with its audit, its log and its metrics page."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psycopg

from benchmarks.contenders.protocol import Command, Facts, Job, own_module
from benchmarks.contenders.running import Running
from benchmarks.router.stage import Space
from tarry.contract.headers import DUE
from tarry.embedded import ports

NOBODY = "postgresql://nobody@127.0.0.1:1/nowhere"
"""No Postgres listens there: records go to the spool."""


@dataclass
class Tarry:
    """The product."""

    slug: str = "tarry"
    name: str = "tarry"
    size: int = 40_000
    broker: bool = True
    furnished: bool = True
    due_header: str | None = DUE
    facts: Facts = field(
        default_factory=lambda: Facts(
            durable="yes: quorum queues, dead-lettered at least once",
            delays="any, up to a year, in 125 ms steps",
            same_queue="yes, as it was",
            audit="yes: each step in Postgres",
        )
    )
    settings: Mapping[str, str] = field(
        default_factory=lambda: {
            "program": "tarry serve, one process, its own defaults (batches of up to 500, uvloop)",
            "audit": "Postgres, payloads kept; JSON log to a file",
            "recorded": "a retry counts when the tap has written its return",
        }
    )
    _ports: dict[str, list[int]] = field(default_factory=dict)

    def versions(self) -> dict[str, str]:
        return {one: importlib.metadata.version(one) for one in ("tarry", "pika", "psycopg", "uvloop")}

    def prepare(self, space: Space, job: Job) -> None:
        self._ports = {str(space.folder): ports.free(job.workers)}

    def send(self, space: Space, job: Job, count: int, per_second: int) -> Command:
        names = space.topology.broker_names
        extra = ["ladder"] if job.variant == "ladder" else []
        return own_module("requests", names.intake, count, job.body, per_second, *extra)

    def work(self, _space: Space, job: Job) -> Sequence[Command]:
        unaudited = job.variant == "audit off"
        program = "benchmarks.audit.unaudited" if unaudited else "tarry"
        return [[sys.executable, "-m", program, *([] if unaudited else ["serve"])] for _ in range(job.workers)]

    def environment(self, space: Space, job: Job, place: int) -> dict[str, str]:
        away = {"DATABASE_URL": NOBODY} if job.variant == "audit on the spool" else {}
        return space.environment | away | {"HTTP_PORT": str(self._ports[str(space.folder)][place])}

    def metric(self, space: Space, name: str, label: str = "") -> float:
        """Over all routers and all labels that contain this text; 0 while they do not answer."""
        return sum(_metric(port, name, label) for port in self._ports[str(space.folder)])


def _metric(port: int, name: str, label: str) -> float:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return 0
    return sum(map(float, re.findall(rf"^{name}(?:\{{.*{label}.*\}})? (\S+)$", text, re.MULTILINE)))


def scheduled(one: Running) -> float:
    return _of(one).metric(one.space, "retries_scheduled_total")


def recorded(one: Running) -> float:
    """Returns that are in the store."""
    return _of(one).metric(one.space, "retries_executed_total", "returned")


def first_claim(one: Running) -> float:
    """When the first request was claimed, as the store has it."""
    with psycopg.connect(one.space.dsn) as connection:
        row = connection.execute("select extract(epoch from min(at)) from transition").fetchone()
    return float(row[0]) if row and row[0] else one.started_at


def scheduled_moments(one: Running) -> list[float]:
    """When each was recorded as scheduled, which is after the broker's confirm; oldest first."""
    with psycopg.connect(one.space.dsn) as connection:
        question = "select extract(epoch from at)::float8 from transition where state = 'scheduled' order by at"
        return [float(at) for (at,) in connection.execute(question)]


def _of(one: Running) -> Tarry:
    assert isinstance(one.contender, Tarry)
    return one.contender

"""One scene: a vhost with the topology in it, a database, routers, producers and consumers as processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import pika
import psycopg
from pika.adapters.blocking_connection import BlockingChannel

from tarry.attach.perform import Request, attach
from tarry.audit.migrate import migrate
from tarry.broker.address import Address
from tarry.embedded import Broker
from tarry.topology.apply import apply
from tarry.topology.load import load
from tests.chaos.load.plan import ASKS, MAX_RETRIES, REJECTS, SCHEDULE_MS
from tests.chaos.stage import Stage
from tests.harness.amqp import open_connection
from tests.harness.proxy import Proxy
from tests.harness.spaces import Vhost, address_of, drop_vhost, with_port
from tests.harness.waiting import wait_for
from tests.integration.router.serving import TARRY, Router

HEARTBEAT = 4
"""Seconds. As short as it can be, so that a silent broker is noticed within the run."""

BATCH = 50
"""Small, so that what a crash can double is a number worth looking at."""


def policies(schedule_ms: tuple[int, ...] = SCHEDULE_MS, most: int = MAX_RETRIES) -> str:
    """Two levels of the ladder reach 8 seconds: there is less to declare."""
    schedule = ", ".join(f'"{delay}ms"' for delay in schedule_ms)
    return f'[ladder]\nlevels = 2\n\n[[policy]]\nname = "default"\nschedule = [{schedule}]\nmax_retries = {most}\n'


@dataclass
class Scene:
    """Made by `scene()`; everything in it ends with it."""

    stage: Stage
    folder: Path
    vhost: Vhost
    database: str
    rate: float
    stack: contextlib.ExitStack
    router_command: list[str] = field(default_factory=lambda: list(TARRY))
    settings: dict[str, str] = field(default_factory=dict)
    """Of every router that is started from now on."""
    first_routers: int = 1
    """How many there are before any fault."""
    routers: list[Router] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    """Queues that a fault brings, beside the two that every scene has."""
    wires: dict[str, Proxy] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def topology(self) -> Path:
        return self.folder / "topology"

    @property
    def dsn(self) -> str:
        return self.stage.postgres.dsn(self.database)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RABBITMQ_URL": self.vhost.amqp_url,
            "RABBITMQ_MANAGEMENT_URL": self.vhost.management_url,
            "DATABASE_URL": self.dsn,
            "TARRY_TOPOLOGY": str(self.topology),
            "TARRY_LOG": "json",
            "TARRY_BATCH": str(BATCH),
            "HTTP_PORT": "0",
        }

    @property
    def address(self) -> Address:
        return Address.parse(self.vhost.amqp_url, management_url=self.vhost.management_url)

    def apply(self, text: str | None = None, folder: Path | None = None) -> None:
        where = folder or self.topology
        where.mkdir(exist_ok=True)
        if text is not None:
            (where / "tarry.toml").write_text(text, encoding="utf-8")
        apply(load(where), self.address)

    def declare(self, queue: str, **arguments: Any) -> None:
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"} | arguments)

    def declare_on(self, node: Broker, queue: str, **arguments: Any) -> None:
        """By way of that node."""
        url = with_port(self.vhost.amqp_url, address_of(node.amqp_url)[1])
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
            given = {"x-queue-type": "quorum"} | arguments
            connection.channel().queue_declare(queue, durable=True, arguments=given)

    def attach(self, *queues: str) -> None:
        attach(load(self.topology), self.address, Request(queues=queues, probe=False))

    @contextlib.contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with open_connection(self.vhost.amqp_url) as connection:
            yield connection.channel()

    def wire(self, to: str) -> Proxy:
        """The router's own way to the broker or to Postgres, to be cut; routers started from now on take it."""
        if to not in self.wires:
            url, setting = (self.vhost.amqp_url, "RABBITMQ_URL") if to == "broker" else (self.dsn, "DATABASE_URL")
            self.wires[to] = self.stack.enter_context(Proxy(address_of(url)))
            self.settings[setting] = with_port(url, self.wires[to].port)
        return self.wires[to]

    def start_router(self, command: list[str] | None = None, **settings: str) -> Router:
        log = self.folder / f"router-{len(self.routers)}.log"
        given = self.environment | self.settings | settings
        given["RABBITMQ_URL"] += f"?heartbeat={HEARTBEAT}"
        with log.open("wb") as file:
            process = subprocess.Popen(command or self.router_command, env=os.environ | given, stderr=file, stdout=file)
        self.routers.append(Router(process, log))
        return self.routers[-1]

    @property
    def running(self) -> list[Router]:
        return [router for router in self.routers if router.process.poll() is None]

    def start_producer(self, seed: int, prefix: str, *, light: bool = False) -> None:
        extra = [argument for queue in self.extra for argument in ("--extra", queue)]
        rate, ledger = str(self.rate), str(self.folder / "ledger")
        given = ["--rate", rate, "--seed", str(seed), "--prefix", prefix, "--ledger", ledger]
        self._start("producer", "producer", [*given, *extra, *(["--light"] if light else [])])

    def start_consumer(self, queue: str) -> None:
        self._start(queue, "consumer", ["--queue", queue, "--arrivals", str(self.folder / f"arrivals.{queue}")])

    def stop(self, name: str, patience: float = 30) -> None:
        process = self.processes.pop(name)
        process.terminate()
        process.wait(patience)

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        command = [sys.executable, "-m", f"tests.chaos.load.{module}", "--url", self.vhost.amqp_url, *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def command(self, *arguments: str, patience: float = 120) -> subprocess.CompletedProcess[str]:
        """A tarry command, with the scene's own addresses."""
        return subprocess.run(
            [sys.executable, "-m", "tarry", *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience,
        )

    def count(self, question: LiteralString) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(question).fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for router in self.running:
            router.kill()


@contextlib.contextmanager
def scene(stage: Stage, folder: Path, rate: float, prepare: Callable[[Scene], None]) -> Iterator[Scene]:
    """Ready for load: topology, queues, attachment and one router stand; `prepare` adds what a fault needs."""
    with contextlib.ExitStack() as stack:
        made = _furnish(stage, folder, rate, stack)
        prepare(made)
        for queue in (REJECTS, ASKS):
            made.declare(queue)
        made.attach(REJECTS)
        for router in [made.start_router() for _ in range(made.first_routers)]:
            router.wait_ready(60)
        made.queues = [REJECTS, ASKS, *made.extra]
        for queue in made.queues:
            made.start_consumer(queue)
        _wait_consumed(made)
        yield made


def _furnish(stage: Stage, folder: Path, rate: float, stack: contextlib.ExitStack) -> Scene:
    vhost = stage.vhost()
    stack.callback(drop_vhost, vhost)
    database = f"chaos_{secrets.token_hex(4)}"
    with psycopg.connect(stage.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"create database {database}")
    stack.callback(_drop_database, stage, database)
    made = Scene(stage, folder, vhost, database, rate, stack)
    stack.callback(made.close)
    migrate(made.dsn)
    made.apply(policies())
    return made


def _drop_database(stage: Stage, name: str) -> None:
    with psycopg.connect(stage.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)")


def _wait_consumed(made: Scene) -> None:
    with made.channel() as channel:
        for queue in made.queues:
            wait_for(
                lambda name=queue: channel.queue_declare(name, passive=True).method.consumer_count,  # type: ignore[misc]
                deadline=30,
                what=f"a consumer of {queue}",
            )


def wait(seconds: float) -> None:
    """A fault lasts so long; there is nothing to wait for but time."""
    time.sleep(seconds)

"""One scene: an installation with routers, producers and consumers as processes."""

from __future__ import annotations

import asyncio
import contextlib
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

from tarry.amqp.url import Address
from tarry.attach.apply import AttachRequest, attach
from tarry.embedded import Broker
from tarry.store.database import migrate
from tarry.topology.apply import apply
from tarry.topology.load import load
from tests.chaos.load.plan import ASKS, MAX_RETRIES, REJECTS, SCHEDULE_MS
from tests.chaos.stage import Stage
from tests.support.cli import run_process
from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import SERVE, Router, spawn_router
from tests.support.spaces import Vhost, address_of, drop_vhost, with_port
from tests.support.waiting import wait_for

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
    """Made by `scene()`. All its processes end with it."""

    stage: Stage
    folder: Path
    vhost: Vhost
    database: str
    rate: float
    stack: contextlib.ExitStack
    router_command: list[str] = field(default_factory=lambda: list(SERVE))
    settings: dict[str, str] = field(default_factory=dict)
    """Of every router that is started later."""
    first_routers: int = 1
    """The number of routers before any fault."""
    routers: list[Router] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    """Queues that a fault adds to the two of every scene."""
    wires: dict[str, Proxy] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def topology(self) -> Path:
        return self.folder / "topology"

    @property
    def dsn(self) -> str:
        return self.stage.postgres.dsn(self.database)

    @property
    def installation(self) -> Installation:
        return Installation(self.vhost.amqp_url, self.vhost.management_url, self.dsn, self.topology)

    @property
    def environment(self) -> dict[str, str]:
        return self.installation.environment | {"TARRY_BATCH": str(BATCH)}

    @property
    def address(self) -> Address:
        return self.installation.address

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
        attach(load(self.topology), self.address, AttachRequest(queues=queues, probe=False))

    @contextlib.contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with self.installation.open_channel() as channel:
            yield channel

    def wire(self, to: str) -> Proxy:
        """The router's own way to the broker or to Postgres, to be cut; routers started from now on take it."""
        if to not in self.wires:
            url, setting = (self.vhost.amqp_url, "RABBITMQ_URL") if to == "broker" else (self.dsn, "DATABASE_URL")
            self.wires[to] = self.stack.enter_context(Proxy(address_of(url)))
            self.settings[setting] = with_port(url, self.wires[to].port)
        return self.wires[to]

    def describe(self) -> str:
        """For a failure: the depths of the queues, and the last lines of the logs of its processes."""
        try:
            found = self.installation.api("queues/{vhost}")
            depths = {one["name"]: one.get("messages", 0) for one in found if one.get("messages", 0)}
        except Exception as error:  # noqa: BLE001 - it describes another failure
            depths = {"unknown": repr(error)}
        running = [name for name, process in self.processes.items() if process.poll() is None]
        lines = [f"depths: {depths}", f"running: {running}, {len(self.running)} of {len(self.routers)} routers"]
        for log in sorted(self.folder.glob("*.log")):
            lines += [f"{log.name}:", *log.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(lines)

    def start_router(self, command: list[str] | None = None, **settings: str) -> Router:
        log = self.folder / f"router-{len(self.routers)}.log"
        given = self.environment | self.settings | settings
        given["RABBITMQ_URL"] += f"?heartbeat={HEARTBEAT}"
        self.routers.append(spawn_router(command or self.router_command, given, log))
        return self.routers[-1]

    @property
    def running(self) -> list[Router]:
        return [router for router in self.routers if router.running]

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
        """A tarry command with the settings of the scene."""
        return run_process(arguments, self.environment, timeout=patience)

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
    asyncio.run(migrate(made.dsn))
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
                deadline=180,
                what=f"a consumer of {queue}",
            )


def wait(seconds: float) -> None:
    """A fault lasts so long; there is nothing to wait for but time."""
    time.sleep(seconds)

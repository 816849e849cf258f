"""An installation whose books are to be proven: its files, routers as processes, the commands, and what workers do."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika
import psycopg
from pika.adapters.blocking_connection import BlockingChannel
from typer.testing import CliRunner

from tarry.broker.address import Address
from tarry.broker.management import Management
from tarry.broker.publisher import Message, Outcome, Publisher
from tarry.cli.audit import app
from tarry.contract.encoding import table
from tarry.contract.properties import Properties
from tarry.topology.apply import apply
from tarry.topology.load import load
from tests.harness.amqp import open_connection
from tests.harness.waiting import wait_for

FILES = """
[ladder]
levels = 5

[[policy]]
name = "hour"
match = { queue = "hour.*" }
schedule = ["1h"]
max_retries = 3

[[policy]]
name = "six"
match = { queue = "six.*" }
schedule = ["6s"]
max_retries = 3

[[policy]]
name = "default"
schedule = ["250ms"]
jitter = "250ms"
max_retries = 3
"""
"""A small ladder: there is less to declare."""


@dataclass
class World:
    """A broker or a vhost, a database and a folder with the topology."""

    amqp_url: str
    management_url: str
    dsn: str
    folder: Path
    routers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RABBITMQ_URL": self.amqp_url,
            "RABBITMQ_MANAGEMENT_URL": self.management_url,
            "DATABASE_URL": self.dsn,
            "TARRY_TOPOLOGY": str(self.folder),
            "HTTP_PORT": "0",
        }

    def apply(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "tarry.toml").write_text(FILES, encoding="utf-8")
        apply(load(self.folder), Address.parse(self.amqp_url, management_url=self.management_url))

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        """A router that takes requests when this returns."""
        log = self.folder / f"router-{len(self.routers)}.log"
        with log.open("wb") as file:
            router = subprocess.Popen(
                [sys.executable, "-m", "tarry", "serve"],
                env=os.environ | self.environment | settings,
                stdout=file,
                stderr=file,
            )
        self.routers.append(router)
        with self.channel() as channel:
            wait_for(
                lambda: _consumers(channel, "retry.scheduled") >= len(self.running),
                deadline=120,
                what=f"the router to consume; it said {log.read_text(errors='replace')[-500:]}",
            )
        return router

    @property
    def running(self) -> list[subprocess.Popen[bytes]]:
        return [router for router in self.routers if router.poll() is None]

    def close(self) -> None:
        for router in self.running:
            router.terminate()
        for router in self.routers:
            router.wait(60)

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with open_connection(self.amqp_url) as connection:
            yield connection.channel()

    def declare(self, queue: str) -> str:
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        return queue

    def depth(self, queue: str) -> int:
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def statistics(self, queue: str, what: str = "messages") -> int:
        """What the management API has of a queue, up to ten seconds late."""
        address = Address.parse(self.amqp_url, management_url=self.management_url)
        [found] = [one for one in Management(address).queues() if one["name"] == queue]
        return int(found.get(what) or 0)

    def take(self, queue: str) -> str:
        """Takes one message out, for good, and tells its id."""
        with self.channel() as channel:
            _, properties, _ = channel.basic_get(queue, auto_ack=True)
            assert properties is not None
            return str(properties.message_id)

    def number(self, question: str) -> int:
        return int(self.text(question))

    def text(self, question: str) -> str:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return str(row[0])

    def refusal(self, *arguments: str) -> str:
        """Why `tarry audit …` does not do it."""
        done = CliRunner().invoke(app, [*arguments], env=self.environment)
        assert done.exit_code == 1, done.output
        return done.stderr

    def audit(self, *arguments: str) -> tuple[int, Any]:
        """`tarry audit …` and its JSON answer, in this process: the same code without a second's start."""
        done = CliRunner().invoke(app, [*arguments, "--json"], env=self.environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.stdout, done.stderr
        return done.exit_code, json.loads(done.stdout)

    def command(self, *arguments: str) -> tuple[int, Any]:
        """A command as a process, and its JSON answer."""
        done = subprocess.run(
            [sys.executable, "-m", "tarry", *arguments, "--json"],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def verify(self) -> tuple[int, list[str], list[str]]:
        """Exit code, the message ids that are missing, and the tiers that are short."""
        code, answer = self.audit("verify", "--grace", "2s", "--settle", "500ms", "--patience", "0s")
        return code, [one["message_id"] for one in answer["missing"]], [one["tier"] for one in answer["shortages"]]


def _consumers(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.consumer_count)


def ask_all(
    world: World, queue: str, ids: Iterable[str], *, rate: float | None = None, headers: Callable[[], Any] = dict
) -> None:
    """Requests in the form of headers, each confirmed: as fast as may be, or at a steady rate."""
    asyncio.run(_ask_all(world, queue, list(ids), rate, headers))


async def _ask_all(world: World, queue: str, ids: list[str], rate: float | None, headers: Callable[[], Any]) -> None:
    publisher = await Publisher.open(Address.parse(world.amqp_url), "producer")
    started, done = time.monotonic(), 0
    while done < len(ids):
        until = len(ids) if rate is None else min(len(ids), int((time.monotonic() - started) * rate) + 1)
        for start in range(done, until, 500):
            some = ids[start : min(start + 500, until)]
            outcomes = await publisher.publish([_request(queue, one, headers()) for one in some])
            assert set(outcomes) == {Outcome.CONFIRMED}
        done = until
        await asyncio.sleep(0.02)
    await publisher.link.close()


def _request(queue: str, message_id: str, headers: dict[str, Any]) -> Message:
    about = Properties(
        headers=table({"original_queue": queue, **headers}), delivery_mode=2, message_id=message_id.encode()
    )
    return Message("", "retry.scheduled", about, b"x" * 64, message_id)


@dataclass
class Worker:
    """Consumes a queue on a thread of its own and keeps its own count."""

    world: World
    queue: str
    fails: Callable[[pika.BasicProperties], dict[str, Any] | None] = lambda _: None
    """The headers of a new request, or None where the message is done."""
    copies: int = 1
    """How often it sends each of them."""
    seen: Counter[str] = field(default_factory=Counter)
    drifts: list[int] = field(default_factory=list)
    """How long after its due moment each came; a negative one was early."""
    asked: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name=f"worker {self.queue}")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def total(self) -> int:
        return sum(self.seen.copy().values())

    def _run(self) -> None:
        with self.world.channel() as channel:
            channel.basic_qos(prefetch_count=500)
            for method, properties, body in channel.consume(self.queue, inactivity_timeout=0.1):
                if self._stop.is_set():
                    break
                if method is None or properties is None or body is None:
                    continue
                self._one(channel, properties, body)
                channel.basic_ack(method.delivery_tag or 0)

    def _one(self, channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        now = time.time_ns() // 1_000_000
        self.seen[str(properties.message_id)] += 1
        due: Any = (properties.headers or {}).get("tarry-due-ms")
        if due is not None:
            self.drifts.append(now - int(due))
        again = self.fails(properties)
        for _ in range(0 if again is None else self.copies):
            self.asked += 1
            about = pika.BasicProperties(delivery_mode=2, message_id=properties.message_id, headers=again)
            channel.basic_publish("", "retry.scheduled", body, about)

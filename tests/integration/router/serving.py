"""A place for a router to work in, and routers as processes in it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pika
import psycopg
from pika.adapters.blocking_connection import BlockingChannel

from tarry.broker.address import Address
from tarry.topology.apply import apply
from tarry.topology.load import load
from tests.harness.amqp import let_go
from tests.harness.waiting import wait_for

POLICIES = """
[ladder]
levels = 4

[[policy]]
name = "quick"
match = { queue = "quick.*" }
schedule = ["500ms"]
max_retries = 3

[[policy]]
name = "slow"
match = { queue = "slow.*" }
schedule = ["5m"]
max_retries = 3

[[policy]]
name = "default"
schedule = ["250ms", "750ms"]
max_retries = 2
"""
QUORUM = {"x-queue-type": "quorum"}
IN_TIME = 20
"""Seconds. A router promises to leave within ten; the others are for a busy machine to start and end processes."""
START = 120
"""Seconds. A busy machine may need a minute for what takes three, and many tests may hang on one start."""
TARRY = [sys.executable, "-m", "tarry", "serve"]


@dataclass
class Place:
    """A vhost with the topology in it, a database, and the files."""

    amqp_url: str
    management_url: str
    dsn: str
    folder: Path
    api: Callable[..., Any]
    connection: pika.BlockingConnection = field(init=False)
    channel: BlockingChannel = field(init=False)

    def __post_init__(self) -> None:
        self.write_policies(POLICIES)
        self.apply()
        self.connect()

    def connect(self) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(self.amqp_url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    @property
    def address(self) -> Address:
        return Address.parse(self.amqp_url, management_url=self.management_url)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RABBITMQ_URL": self.amqp_url,
            "RABBITMQ_MANAGEMENT_URL": self.management_url,
            "DATABASE_URL": self.dsn,
            "TARRY_TOPOLOGY": str(self.folder),
            "TARRY_LOG": "json",
            "HTTP_PORT": "0",
        }

    def write_policies(self, text: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "tarry.toml").write_text(text, encoding="utf-8")

    def apply(self) -> None:
        apply(load(self.folder), self.address)

    def origin(self, name: str) -> str:
        self.channel.queue_declare(name, durable=True, arguments=QUORUM)
        return name

    def request(self, queue: str, message_id: str, body: bytes = b"payload", **headers: str | int) -> None:
        """A request in the form of headers."""
        about = pika.BasicProperties(
            delivery_mode=2, message_id=message_id, headers={"original_queue": queue, **headers}
        )
        self.channel.basic_publish("", "retry.scheduled", body, about, mandatory=True)

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def get(self, queue: str) -> tuple[pika.BasicProperties, bytes] | None:
        """One message, taken for good."""
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        if method is None or properties is None or body is None:
            return None
        return properties, body

    def wait_message(self, queue: str, deadline: float = 30) -> tuple[pika.BasicProperties, bytes]:
        found = wait_for(lambda: self.get(queue), deadline=deadline, what=f"a message in {queue}")
        assert found is not None
        return found

    def take(self, queue: str, count: int, deadline: float = 30) -> list[str]:
        """The ids of so many messages."""
        found: list[str] = []

        def enough() -> bool:
            while (one := self.get(queue)) is not None:
                found.append(str(one[0].message_id))
            return len(found) >= count

        wait_for(enough, deadline=deadline, what=f"{count} messages in {queue}")
        return found

    def states(self, message_id: str) -> list[tuple[str, str]]:
        """Id and state of every retry of this message id, oldest first."""
        with psycopg.connect(self.dsn) as connection:
            sql = "select id::text, state from retry where message_id = %s order by first_failed_at, id"
            return connection.execute(sql, (message_id,)).fetchall()

    def retry_of(self, message_id: str) -> str:
        """The id of the one retry of this message id, as soon as it is in the audit."""
        ((retry, _),) = wait_for(lambda: self.states(message_id), what=f"a retry of {message_id}")
        return retry

    def transitions(self, state: str) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("select count(*) from transition where state = %s", (state,)).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        let_go(self.connection)


@dataclass
class Router:
    """A running `tarry serve`."""

    process: subprocess.Popen[bytes]
    log: Path

    @cached_property
    def port(self) -> int:
        """Read once: a log can be long."""
        started = wait_for(lambda: self.said("started"), deadline=START, what="the router to say where it listens")
        return int(started[0]["http"].rpartition(":")[2])

    def lines(self) -> list[dict[str, Any]]:
        whole = [line for line in self.log.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
        return [json.loads(line) for line in whole if line.startswith("{")]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if event in line["event"]]

    def wait_said(self, event: str, deadline: float = 30) -> dict[str, Any]:
        found = wait_for(lambda: self.said(event), deadline=deadline, what=f"the router to say {event!r}")
        return found[-1]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            # Its own words are what a reader of a failed test needs.
            assert self.process.poll() is None, f"the router ended: {self.log.read_text()[-2000:]}"
            raise

    def ready(self) -> tuple[int, list[str]]:
        status, text = self.get("/readyz")
        return status, json.loads(text)["reasons"]

    def wait_ready(self, deadline: float = START) -> Router:
        wait_for(lambda: self.ready() == (200, []), deadline=deadline, what="the router to be ready")
        return self

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples with these labels; 0 if there is none."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(one in line for one in wanted))

    def stop(self) -> float:
        """How long it took to leave after SIGTERM."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - started

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextlib.contextmanager
def routers(place: Place) -> Iterator[Callable[..., Router]]:
    """Call it to start one, with settings that differ from the place's own."""
    started: list[Router] = []

    def start(**settings: str) -> Router:
        log = place.folder / f"router-{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(TARRY, env=os.environ | place.environment | settings, stderr=file)
        started.append(Router(process, log))
        return started[-1]

    try:
        yield start
    finally:
        for router in started:
            if router.process.poll() is None:
                router.kill()

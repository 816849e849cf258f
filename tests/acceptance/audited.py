"""An installation whose audit is tested: routers as processes, the audit commands, producers and workers."""

from __future__ import annotations

import asyncio
import json
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
from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.field_tables import table
from tarry.amqp.management import Management
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.errors import Code
from tests.support.cli import run_cli, run_process
from tests.support.installation import Installation
from tests.support.router import START, Router, start_router
from tests.support.services import Services
from tests.support.spaces import SharedBroker, drop_database, drop_vhost, make_database, make_vhost
from tests.support.waiting import wait_for

POLICIES = """
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
"""A small ladder, so that there is less to declare."""

BETWEEN_CHECKS = 0.25
"""Seconds."""


@dataclass
class AuditedInstallation(Installation):
    """An installation with several routers, and the audit commands."""

    policies: str = POLICIES
    routers: list[Router] = field(default_factory=list)

    def start(self, count: int = 1, **settings: str) -> None:
        """Starts `count` routers and waits until all of them consume requests."""
        self.routers += [start_router(self, **settings) for _ in range(count)]
        with self.open_channel() as channel:
            wait_for(lambda: self._all_consume(channel), deadline=START, what="every router to consume")

    def _all_consume(self, channel: BlockingChannel) -> bool:
        for router in self.routers:
            assert router.running, f"a router ended: {router.log.read_text(errors='replace')[-3_000:]}"
        return _consumers(channel, "retry.scheduled") >= len(self.routers)

    def close(self) -> None:
        for router in self.routers:
            router.process.terminate()
        for router in self.routers:
            router.process.wait(60)
        super().close()

    def declare(self, queue: str, kind: str = "quorum", **arguments: Any) -> str:
        """On a new connection: these tests kill brokers and outlast heartbeats."""
        self.reconnect()
        return super().declare(queue, kind, **arguments)

    def depth(self, queue: str) -> int:
        self.reconnect()
        return super().depth(queue)

    def statistics(self, queue: str, what: str = "messages") -> int:
        """A value of the management API about a queue, up to ten seconds old."""
        [found] = [known for known in Management(self.address).queues() if known["name"] == queue]
        return int(found.get(what) or 0)

    def take(self, queue: str) -> str:
        """Takes one message and returns its id."""
        with self.open_channel() as channel:
            _, properties, _ = channel.basic_get(queue, auto_ack=True)
            assert properties is not None
            return str(properties.message_id)

    def text(self, question: str) -> str:
        return str(self.rows(question)[0][0])

    def refusal(self, *arguments: str) -> str:
        """The error of `tarry audit ARGUMENTS`, which the state of something must forbid."""
        done = run_cli(["audit", *arguments], self.environment)
        assert done.exit_code == Code.INVALID_STATE.exit_code, done.output
        return done.stderr

    def audit(self, *arguments: str) -> tuple[int, Any]:
        """Exit code and JSON output of `tarry audit ARGUMENTS`, run in this process."""
        done = run_cli(["audit", *arguments, "--json"], self.environment)
        assert done.stdout, done.stderr
        return done.exit_code, json.loads(done.stdout)

    def command(self, *arguments: str) -> tuple[int, Any]:
        """Exit code and JSON output of a command, run as a process."""
        done = run_process([*arguments, "--json"], self.environment)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def verify(self) -> tuple[int, list[str], list[str]]:
        """Exit code, the message ids that are missing, and the tiers that are short."""
        code, answer = self.audit("verify", "--grace", "2s", "--settle", "500ms", "--patience", "0s")
        return code, [one["message_id"] for one in answer["missing"]], [one["tier"] for one in answer["shortages"]]

    def wait_verified(self, *missing: str) -> None:
        """Waits until the audit reports these message ids as missing, and no other."""

        def verified() -> bool:
            return self.verify() == (int(bool(missing)), list(missing), [])

        self.wait_checking(verified, f"the audit to miss {', '.join(missing) or 'nothing'}")

    def wait_checking(self, check: Callable[[], bool], what: str) -> None:
        """Waits with pauses: statistics are seconds old, and a check costs a tenth of a second of processor time."""

        def paused() -> bool:
            found = check()
            time.sleep(0 if found else BETWEEN_CHECKS)
            return found

        wait_for(paused, deadline=120, what=what)


def _consumers(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.consumer_count)


def request_all(
    installation: AuditedInstallation,
    queue: str,
    ids: Iterable[str],
    *,
    rate: float | None = None,
    headers: Callable[[], Any] = dict,
) -> None:
    """Publishes confirmed requests in the form of headers: as fast as possible, or at a steady rate."""
    asyncio.run(_request_all(installation, queue, list(ids), rate, headers))


async def _request_all(
    installation: AuditedInstallation, queue: str, ids: list[str], rate: float | None, headers: Callable[[], Any]
) -> None:
    publisher = await Publisher.open(installation.address, "producer")
    started, done = time.monotonic(), 0
    while done < len(ids):
        until = len(ids) if rate is None else min(len(ids), int((time.monotonic() - started) * rate) + 1)
        for start in range(done, until, 500):
            some = ids[start : min(start + 500, until)]
            outcomes = await publisher.publish([_request(queue, one, headers()) for one in some])
            assert set(outcomes) == {PublishOutcome.CONFIRMED}
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
    """Consumes a queue on a thread and counts what it gets."""

    installation: AuditedInstallation
    queue: str
    fails: Callable[[pika.BasicProperties], dict[str, Any] | None] = lambda _: None
    """The headers of the next request; None if the message is done."""
    copies: int = 1
    """How often it publishes each request."""
    seen: Counter[str] = field(default_factory=Counter)
    drifts: list[int] = field(default_factory=list)
    """Milliseconds from the due time to the arrival of each message; negative means early."""
    requested: int = 0
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
        with self.installation.open_channel() as channel:
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
            self.requested += 1
            about = pika.BasicProperties(delivery_mode=2, message_id=properties.message_id, headers=again)
            channel.basic_publish("", "retry.scheduled", body, about)


@contextmanager
def shared_audited(
    broker: SharedBroker, services: Services, folder: Path, policies: str
) -> Iterator[AuditedInstallation]:
    """An installation on a new vhost and a new database, for the tests of a file to share."""
    vhost = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    database = make_database(services.postgres())
    made = AuditedInstallation(vhost.amqp_url, vhost.management_url, database.dsn, folder, policies)
    try:
        yield made.apply()
    finally:
        made.close()
        drop_vhost(vhost)
        drop_database(services.postgres(), database)

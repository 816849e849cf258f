"""Workers without a line of tarry: after `tarry attach` their rejects come back on schedule and end in review."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tarry.embedded import ports
from tarry.topology.load import shipped
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for

TARRY = [sys.executable, "-m", "tarry"]
NODE_WORKER = Path(__file__).parents[2] / "examples" / "node-worker"
SCALE = 0.25
DELAYS_MS = (500, 1_000, 2_000)
"""2 s, 4 s and 8 s of the default policy, at that scale."""
SLACK_MS = 15_000
"""Jitter, rounding, and two busy cores: how punctual it is on quiet ones is measured in benchmarks/."""

PIKA_WORKER = """
import json, os, time
import pika

def handle(order):
    if order["card"] == "declined":
        raise ValueError("declined")

def on_message(channel, method, properties, body):
    order, at = json.loads(body), int(time.time() * 1000)
    try:
        handle(order)
    except ValueError:
        channel.basic_reject(method.delivery_tag, requeue=False)
        outcome = "failed"
    else:
        channel.basic_ack(method.delivery_tag)
        outcome = "done"
    print(json.dumps({"at": at, "order": order["id"], "key": method.routing_key, "outcome": outcome}), flush=True)

connection = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"]))
channel = connection.channel()
channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
channel.basic_consume("orders", on_message)
channel.start_consuming()
"""


@dataclass
class Worker:
    """A running worker and what it has said so far."""

    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def deliveries(self, order: int) -> list[dict[str, Any]]:
        return [said for said in self.said if said["order"] == order]


@pytest.fixture
def settings(vhost: Vhost, database: Database, tmp_path: Path) -> dict[str, str]:
    """The environment of every process here: the shipped topology, with its clock running faster."""
    folder = tmp_path / "topology"
    shutil.copytree(shipped(), folder)
    main = folder / "tarry.toml"
    main.write_text(f"time_scale = {SCALE}\n{main.read_text()}")
    return os.environ | {
        "RABBITMQ_URL": vhost.amqp_url,
        "RABBITMQ_MANAGEMENT_URL": vhost.management_url,
        "DATABASE_URL": database.dsn,
        "TARRY_TOPOLOGY": str(folder),
        "HTTP_PORT": str(a_free_port()),
    }


@pytest.fixture
def tarry(settings: dict[str, str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        done = subprocess.run([*TARRY, *arguments], env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"tarry {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def service(settings: dict[str, str], tarry: Callable[..., str]) -> Iterator[None]:
    """`tarry serve`, ready; it must also end well when told to."""
    tarry("topology", "apply")
    with subprocess.Popen([*TARRY, "serve"], env=settings) as process:
        try:
            wait_for(
                lambda: process.poll() is not None or is_ready(settings), deadline=120, what="tarry serve to be ready"
            )
            assert process.poll() is None, "tarry serve ended by itself: see its log above"
            yield
        finally:
            process.terminate()
        assert process.wait(timeout=30) == 0


def is_ready(settings: dict[str, str]) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{settings['HTTP_PORT']}/readyz", timeout=30) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except URLError:
        return False


def a_free_port() -> int:
    return ports.free(1)[0]


def pika_worker(_tmp_path: Path) -> list[str]:
    return [sys.executable, "-c", PIKA_WORKER]


def node_worker(tmp_path: Path) -> list[str]:
    """The example, installed as its reader would."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH: the example worker in Node cannot run here")
    folder = tmp_path / "node-worker"
    shutil.copytree(NODE_WORKER, folder, ignore=shutil.ignore_patterns("node_modules"))
    install = ["npm", "ci", "--no-audit", "--no-fund"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        unproven = pytest.fail if os.environ.get("CI") else pytest.skip
        unproven(f"npm ci did not work here, so the worker in Node cannot run: {done.stderr[-300:]}")
    return ["node", str(folder / "worker.js")]


@contextmanager
def running(command: list[str], settings: dict[str, str]) -> Iterator[Worker]:
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as process:
        worker = Worker(process)
        listener = threading.Thread(target=worker.listen, daemon=True)
        listener.start()
        try:
            yield worker
        finally:
            process.kill()
            listener.join()


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("worker_command", [pika_worker, node_worker])
def test_rejects_come_back_on_schedule_and_end_in_review(
    worker_command: Callable[[Path], list[str]],
    settings: dict[str, str],
    tarry: Callable[..., str],
    vhost: Vhost,
    tmp_path: Path,
) -> None:
    with (
        running(worker_command(tmp_path), settings) as worker,
        pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection,
    ):
        wait_for(lambda: consumers(vhost, "orders"), deadline=120, what="the worker to consume")
        tarry("attach", "orders")
        channel = connection.channel()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_bind("orders", "shop", "order.#")
        bad, good = b'{"id": 1, "card": "declined"}', b'{"id": 2, "card": "fine"}'
        for body in (bad, good):
            channel.basic_publish("shop", "order.new", body, pika.BasicProperties(delivery_mode=2))

        found = wait_for(lambda: take(channel, "manual-review.pending"), deadline=90, what="a message in review")

        assert found is not None
        reviewed, headers = found
        assert reviewed == bad
        assert "exhausted" in headers["review_reason"]
        attempts = worker.deliveries(1)
        assert [attempt["key"] for attempt in attempts] == ["order.new"] * (1 + len(DELAYS_MS))
        gaps = [later["at"] - sooner["at"] for sooner, later in pairwise(attempts)]
        for gap, delay in zip(gaps, DELAYS_MS, strict=True):
            assert delay <= gap < delay + SLACK_MS, f"gaps {gaps} for delays {DELAYS_MS}"
        assert len(worker.deliveries(2)) == 1

    assert [one["state"] for one in json.loads(tarry("attach", "--list", "--json"))] == ["ok"]
    tarry("topology", "verify")
    tarry("audit", "balance")


def take(channel: Any, queue: str) -> tuple[bytes, dict[str, Any]] | None:
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    return None if method is None else (body, properties.headers or {})


def consumers(vhost: Vhost, queue: str) -> int:
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        try:
            return int(connection.channel().queue_declare(queue, passive=True).method.consumer_count)
        except ChannelClosedByBroker:
            return 0

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
from itertools import pairwise
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.acceptance.shipped import ShippedService, serving_a_file
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

NODE_WORKER = Path(__file__).parents[2] / "examples" / "node-worker"
SCALE = 0.1
DELAYS_MS = (200, 400, 800)
"""2 s, 4 s and 8 s of the default policy, at that scale. How punctual it is is measured in benchmarks/."""

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
channel.queue_declare(os.environ["QUEUE"], durable=True, arguments={"x-queue-type": "quorum"})
channel.basic_consume(os.environ["QUEUE"], on_message)
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


@pytest.fixture(scope="module")
def service(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShippedService]:
    """One service, on which each worker has a queue of its own."""
    with serving_a_file(broker, services, tmp_path_factory.mktemp("service"), SCALE) as made:
        yield made


@pytest.mark.parametrize("worker_command", [pika_worker, node_worker])
def test_rejects_come_back_on_schedule_and_end_in_review(
    worker_command: Callable[[Path], list[str]], service: ShippedService, tmp_path: Path
) -> None:
    queue = worker_command.__name__
    with running(worker_command(tmp_path), os.environ | service.environment | {"QUEUE": queue}) as worker:
        wait_for(lambda: consumers(service, queue), deadline=120, what="the worker to consume")
        service.tarry("attach", queue)
        service.channel.exchange_declare("shop", "topic", durable=True)
        service.channel.queue_bind(queue, "shop", f"{queue}.#")
        bad, good = b'{"id": 1, "card": "declined"}', b'{"id": 2, "card": "fine"}'
        for body in (bad, good):
            service.channel.basic_publish("shop", f"{queue}.new", body, pika.BasicProperties(delivery_mode=2))

        reviewed = service.reviewed()

        assert reviewed.body == bad
        assert "exhausted" in reviewed.headers["review_reason"]
        wait_for(lambda: len(worker.deliveries(1)) > len(DELAYS_MS), what="the worker's last line")
        attempts = worker.deliveries(1)
        assert [attempt["key"] for attempt in attempts] == [f"{queue}.new"] * (1 + len(DELAYS_MS))
        gaps = [later["at"] - sooner["at"] for sooner, later in pairwise(attempts)]
        for gap, delay in zip(gaps, DELAYS_MS, strict=True):
            assert gap >= delay, f"gaps {gaps} for delays {DELAYS_MS}"
        assert len(worker.deliveries(2)) == 1

    attached = json.loads(service.tarry("attach", "--list", "--json"))
    assert [one["state"] for one in attached if one["name"] == queue] == ["ok"]
    service.tarry("topology", "verify")
    service.tarry("audit", "balance")


def consumers(service: ShippedService, queue: str) -> int:
    with service.channel.connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).method.consumer_count)
        except ChannelClosedByBroker:
            return 0

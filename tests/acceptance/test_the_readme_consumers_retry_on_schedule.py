"""The consumers of the README, copied out of it as they stand, against `tarry up` in real time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pika
import psycopg

from tests.acceptance.test_a_worker_that_only_rejects_is_retried_on_schedule import a_free_port
from tests.harness.waiting import wait_for
from tests.harness.wanted import missing

ROOT = Path(__file__).parents[2]
TARRY = [sys.executable, "-m", "tarry"]
GIVEN = ("RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL", "BROKER")
BODY = b"an order"
DELAYS = (2, 4, 8)
"""Seconds: the default policy, with up to a second of jitter."""
SLACK = 15.0


class Running:
    """A process, and when it said what."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[tuple[float, str]] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append((time.monotonic(), line.rstrip()))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.said)

    @property
    def attempts(self) -> list[tuple[float, str]]:
        return [(at, line) for at, line in self.said if re.match(r"attempt \d b", line)]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._listener.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[Running]:
    made = Running(command, environment, folder)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def up(folder: Path, series: str | None) -> Iterator[dict[str, str]]:
    """`tarry up`; yields what a person would copy from its output."""
    plain = {name: value for name, value in os.environ.items() if name not in GIVEN}
    chosen = ["--series", series] if series else []
    command = [*TARRY, "up", *chosen, "--data-dir", str(folder / "up"), "--http-port", str(a_free_port())]
    with running(command, plain, folder) as made:

        def is_up() -> bool:
            return "Ctrl-C ends it all" in made.text or made.process.poll() is not None

        wait_for(is_up, deadline=90, what="tarry up to be ready")
        if made.process.poll() is not None:
            missing(f"`tarry up` did not start here: {made.text[-500:]}", series)
        yield plain | dict(re.findall(r"(?m)^\s*([A-Z_]+_URL)=(\S+)$", made.text))


def consumers() -> dict[str, str]:
    """The README's own text, by the queue it consumes from."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    return {re.findall(r'basic_consume\("(\w+)"', block)[0]: block for block in blocks}


def test_there_are_two_of_about_ten_lines() -> None:
    found = consumers()
    assert list(found) == ["orders", "payments"]
    for text in found.values():
        assert len([line for line in text.splitlines() if line.strip()]) <= 12


def test_both_are_retried_on_schedule_and_end_in_review(series: str | None, open_folder: Path) -> None:
    found = consumers()
    with up(open_folder, series) as settings:
        python = [sys.executable, "-u", "-c"]
        with (
            running([*python, found["orders"]], settings, open_folder) as orders,
            running([*python, found["payments"]], settings, open_folder) as payments,
            pika.BlockingConnection(pika.URLParameters(settings["RABBITMQ_URL"])) as connection,
        ):
            reviewed = tell_of(connection, settings, list(found))
            for one in (orders, payments):
                assert_on_schedule(one)
        assert {headers["review_reason"] for _, headers in reviewed} == {"exhausted: 3 of 3 retries spent"}
        assert [body for body, _ in reviewed] == [BODY, BODY]
        with psycopg.connect(settings["DATABASE_URL"]) as books:
            query = "select error_type, error_reason from retry where message_id = 'payments-1'"
            assert books.execute(query).fetchone() == ("ValueError", "the card was declined")


def tell_of(
    connection: pika.BlockingConnection, settings: dict[str, str], queues: list[str]
) -> list[tuple[bytes, dict[str, Any]]]:
    """A message for each, and what is reviewed in the end."""
    channel = connection.channel()
    for queue in queues:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    done = subprocess.run([*TARRY, "attach", "orders"], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for queue in queues:
        about = pika.BasicProperties(delivery_mode=2, message_id=f"{queue}-1")
        channel.basic_publish("", queue, BODY, about)
    return [take(channel, "manual-review.pending") for _ in queues]


def assert_on_schedule(one: Running) -> None:
    assert [line for _, line in one.attempts] == [f"attempt {number} {BODY!r}" for number in (1, 2, 3, 4)], one.text
    gaps = [later - sooner for (sooner, _), (later, _) in pairwise(one.attempts)]
    for gap, delay in zip(gaps, DELAYS, strict=True):
        assert delay - 0.1 <= gap < delay + SLACK, f"gaps {gaps} for delays {DELAYS}"


def take(channel: Any, queue: str) -> tuple[bytes, dict[str, Any]]:
    def get() -> tuple[bytes, dict[str, Any]] | None:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        return None if method is None else (body, properties.headers or {})

    found = wait_for(get, deadline=90, what=f"a message in {queue}")
    assert found is not None
    return found

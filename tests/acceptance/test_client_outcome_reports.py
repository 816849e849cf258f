"""Consumers with tarry's client against `tarry serve`: what succeeded, at which attempt, is a question in SQL."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tarry.client import Attempt, Final, Options, RateLimited
from tests.acceptance.shipped import ShippedService, serving
from tests.integration.client.adapters import AioPika, Blocking, Consumer, Select
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

ADAPTERS: tuple[type[Consumer], ...] = (Blocking, Select, AioPika)
OUTCOMES = {"succeeded": 5, "in_review": 1}
"""Of the seven messages below; the first one needs no retry."""
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def handle(attempt: Attempt, body: bytes) -> None:
    """The body says at which attempt it succeeds."""
    if body == b"never":
        raise Final("no such thing")
    if body == b"limited" and attempt.round == 0:
        raise RateLimited(retry_after=0.3)
    if body.isdigit() and attempt.number < int(body):
        raise ValueError(f"attempt {attempt.number} was too early")


def test_success_by_attempt(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    """Each kind of consumer with a queue of its own."""
    with serving(vhost, database, tmp_path, scale=0.02) as service, ExitStack() as consumers:
        for adapter in ADAPTERS:
            queue = adapter.__name__
            service.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            for number, body in enumerate([b"1", b"2", b"2", b"3", b"4", b"limited", b"never"]):
                service.work(queue, f"m-{number}", body)
            consumers.enter_context(adapter(vhost.amqp_url, queue, handle, Options(report_seconds=0.1)))
        expected = {(adapter.__name__, state): count for adapter in ADAPTERS for state, count in OUTCOMES.items()}
        wait_for(lambda: states(service) == expected, deadline=120, what="every outcome of every consumer")
        assert rates(service) == [(0, 3, 100.0), (1, 12, 50.0), (2, 6, 50.0), (3, 3, 100.0)]
        wait_for(lambda: counted(service) == [(0, 3, 0), (1, 6, 6), (2, 3, 3), (3, 3, 0)], what="the same as metrics")
        for _ in ADAPTERS:
            assert service.reviewed().headers["error_reason"] == "no such thing"


def states(service: ShippedService) -> dict[tuple[str, str], int]:
    """How many of each queue are in each state."""
    with psycopg.connect(service.installation.dsn) as connection:
        return Counter((queue, state) for queue, state in connection.execute("select queue, state from retry"))


def counted(service: ShippedService) -> list[tuple[int, float, float]]:
    """Attempt, and how many retries succeeded and failed at it."""

    def number(attempt: int, outcome: str) -> float:
        return service.metric("tarry_outcomes_by_attempt_total", attempt=str(attempt), outcome=outcome)

    return [(attempt, number(attempt, "success"), number(attempt, "failed")) for attempt in range(4)]


def rates(service: ShippedService) -> list[tuple[Any, ...]]:
    """The page's own query: retries spent, returned, percent that succeeded."""
    (query,) = re.findall(r"```sql\n(.*?percent_succeeded.*?)```", PAGE.read_text(), flags=re.DOTALL)
    with psycopg.connect(service.installation.dsn) as connection:
        return [(attempt, returned, float(percent)) for attempt, returned, percent, *_ in connection.execute(query)]

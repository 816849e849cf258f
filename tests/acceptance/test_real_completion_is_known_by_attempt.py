"""Consumers with tarry's client against `tarry serve`: what succeeded, at which attempt, is a question in SQL."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tarry.client import Attempt, Final, Options, RateLimited
from tests.acceptance.serving import Stage, serving
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for
from tests.integration.client.shells import AioPika, Blocking, Consumer, Select

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def handle(attempt: Attempt, body: bytes) -> None:
    """The body says at which attempt it succeeds."""
    if body == b"never":
        raise Final("no such thing")
    if body == b"limited" and attempt.round == 0:
        raise RateLimited(retry_after=0.3)
    if body.isdigit() and attempt.number < int(body):
        raise ValueError(f"attempt {attempt.number} was too early")


@pytest.mark.parametrize("shell", [Blocking, Select, AioPika])
def test_success_by_attempt(shell: type[Consumer], vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=0.02) as stage:
        queue = "orders"
        stage.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        bodies = [b"1", b"2", b"2", b"3", b"4", b"limited", b"never"]
        for number, body in enumerate(bodies):
            stage.work(queue, f"m-{number}", body)
        with shell(vhost.amqp_url, queue, handle, Options(report_seconds=0.1)):
            wait_for(lambda: states(stage) == {"succeeded": 5, "in_review": 1}, deadline=60, what="every outcome")
        assert rates(stage) == [(0, 1, 100.0), (1, 4, 50.0), (2, 2, 50.0), (3, 1, 100.0)]
        assert stage.reviewed().headers["error_reason"] == "no such thing"


def states(stage: Stage) -> dict[str, int]:
    with psycopg.connect(stage.dsn) as books:
        return Counter(state for (state,) in books.execute("select state from retry"))


def rates(stage: Stage) -> list[tuple[Any, ...]]:
    """The page's own query: retries spent, returned, percent that succeeded."""
    (query,) = re.findall(r"```sql\n(.*?percent_succeeded.*?)```", PAGE.read_text(), flags=re.DOTALL)
    with psycopg.connect(stage.dsn) as books:
        return [(attempt, returned, float(percent)) for attempt, returned, percent, *_ in books.execute(query)]

"""The Python examples of docs/contract.md, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika

from tarry.contract import retry_pb2
from tests.acceptance.serving import Arrival, Stage, serving
from tests.harness.spaces import Database, Vhost

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"


def example(number: int) -> dict[str, Any]:
    """What the page's Python example defines; its `handle` always fails."""

    def handle(_: bytes) -> None:
        raise ValueError("as always")

    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[number]
    found: dict[str, Any] = {"pika": pika, "retry_pb2": retry_pb2, "handle": handle}
    exec(code.replace("30_000", "1_000"), found)  # noqa: S102 - our own page; only the wait is shorter
    return found


def delivered(stage: Stage, queue: str) -> tuple[Arrival, tuple[Any, ...]]:
    """A message, and what a consumer's callback is given of it."""
    arrival = stage.arrival(queue)
    method = SimpleNamespace(delivery_tag=arrival.tag)
    return arrival, (stage.channel, method, arrival.properties, arrival.body)


def test_all_three_forms_bring_the_message_back(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=0.1) as stage:
        for queue, ask in (("orders", 1), ("invoices", 2)):
            stage.queue(queue)
            stage.work(queue, f"{queue}-1", b"payload", tenant="acme")
            _, given = delivered(stage, queue)
            example(0)["on_message"](*given)

            first, given = delivered(stage, queue)
            assert (first.headers["tarry-count"], first.headers["tenant"]) == (1, "acme")
            example(ask)["ask_for_retry"](*given, ValueError("again"))

            second, _ = delivered(stage, queue)
            assert (second.body, second.headers["tarry-round"]) == (b"payload", 2)
            second.assert_on_time()
            stage.ack(second)
        (_, limited), (_, enveloped) = stage.actions("scheduled", "orders-1"), stage.actions("scheduled", "invoices-1")
        assert (limited["error_class"], limited["delay_ms"], limited["attempt"]) == ("rate_limited", 1_000, 1)
        assert (enveloped["error_class"], enveloped["attempt"]) == ("retryable", 2)

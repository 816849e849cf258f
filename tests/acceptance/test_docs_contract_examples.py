"""The Python examples of docs/contract.md, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika

from tarry.contract import retry_pb2
from tests.acceptance.shipped import Arrival, ShippedService, serving
from tests.support.spaces import Database, Vhost

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"


def example(number: int) -> dict[str, Any]:
    """What the page's Python example defines; its `handle` always fails."""

    def handle(_: bytes) -> None:
        raise ValueError("as always")

    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[number]
    found: dict[str, Any] = {"pika": pika, "retry_pb2": retry_pb2, "handle": handle}
    exec(code.replace("30_000", "250"), found)  # noqa: S102 - our own page; only the wait is shorter
    return found


def delivered(service: ShippedService, queue: str) -> tuple[Arrival, tuple[Any, ...]]:
    """A message, and what a consumer's callback is given of it."""
    arrival = service.arrival(queue)
    method = SimpleNamespace(delivery_tag=arrival.tag)
    return arrival, (service.channel, method, arrival.properties, arrival.body)


def test_all_three_forms_bring_the_message_back(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=0.02) as service:
        for queue, ask in (("orders", 1), ("invoices", 2)):
            service.queue(queue)
            service.work(queue, f"{queue}-1", b"payload", tenant="acme")
            _, given = delivered(service, queue)
            example(0)["on_message"](*given)

            first, given = delivered(service, queue)
            assert (first.headers["tarry-count"], first.headers["tenant"]) == (1, "acme")
            example(ask)["ask_for_retry"](*given, ValueError("again"))

            second, _ = delivered(service, queue)
            assert (second.body, second.headers["tarry-round"]) == (b"payload", 2)
            second.assert_on_time()
            service.ack(second)
        (_, limited), (_, enveloped) = service.scheduled("orders-1", 2), service.scheduled("invoices-1", 2)
        assert (limited["error_class"], limited["delay_ms"], limited["attempt"]) == ("rate_limited", 250, 1)
        assert (enveloped["error_class"], enveloped["attempt"]) == ("retryable", 2)

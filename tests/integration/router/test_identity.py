"""Identity: queue, message id and content. Messages that differ are never merged, and lost headers do not loop."""

from __future__ import annotations

import time
from collections.abc import Callable

import pika
import pytest

from tests.support.installation import QUORUM, Installation
from tests.support.router import Router
from tests.support.waiting import wait_for

Start = Callable[..., Router]
POLICY = """
[ladder]
levels = 4

[[policy]]
name = "default"
schedule = ["2s"]
max_retries = 3
"""
DEAD_LETTERED = QUORUM | {"x-dead-letter-exchange": "retry.intake"}


@pytest.fixture
def queue(installation: Installation) -> str:
    """Its rejects go to tarry, as those of an attached queue do."""
    installation.write_policies(POLICY)
    installation.apply()
    installation.channel.queue_declare("orders", durable=True, arguments=DEAD_LETTERED)
    return "orders"


def publish(
    installation: Installation, queue: str, body: bytes, message_id: str | None = "ORDER-4711", **headers: str
) -> None:
    about = pika.BasicProperties(delivery_mode=2, message_id=message_id, headers=dict(headers) or None)
    installation.channel.basic_publish("", queue, body, about, mandatory=True)


def reject_all(installation: Installation, queue: str, count: int) -> None:
    """Takes so many messages, and only then rejects them all."""
    tags: list[int] = []

    def enough() -> bool:
        method, _, _ = installation.channel.basic_get(queue)
        if method is not None:
            tags.append(method.delivery_tag or 0)
        return len(tags) == count

    wait_for(enough, what=f"{count} messages in {queue}")
    for tag in tags:
        installation.channel.basic_reject(tag, requeue=False)


def take_bodies(installation: Installation, queue: str, count: int) -> list[bytes]:
    return sorted(installation.wait_message(queue)[1] for _ in range(count))


def test_identity_six_bodies_with_one_message_id_all_come_back(
    installation: Installation, start: Start, queue: str
) -> None:
    start().wait_ready()
    bodies = [f"body {number}".encode() for number in range(6)]
    for body in bodies:
        publish(installation, queue, body)
    reject_all(installation, queue, 6)
    assert take_bodies(installation, queue, 6) == bodies
    assert installation.transitions("duplicate") == 0


def test_identity_includes_the_users_headers(installation: Installation, start: Start, queue: str) -> None:
    start().wait_ready()
    for tenant in ("a", "b", "c"):
        publish(installation, queue, b"the same", tenant=tenant)
    reject_all(installation, queue, 3)
    found = [installation.wait_message(queue)[0].headers for _ in range(3)]
    assert sorted(str((headers or {})["tenant"]) for headers in found) == ["a", "b", "c"]


def test_identity_requests_with_one_id_and_other_bodies_are_apart(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("slow.orders")
    for body in (b"one", b"two", b"two"):
        installation.request(queue, "ORDER-4711", body)
    wait_for(lambda: router.metric("tarry_duplicates_total") == 1, what="the exact copy to be a duplicate")
    wait_for(lambda: installation.depth("retry.delay.5m") == 2, what="the two others in the tier")


def test_identity_continues_the_count_when_headers_are_stripped(
    installation: Installation, start: Start, queue: str
) -> None:
    """From RabbitMQ 4 every dead-lettered reject has the redelivered flag, which must not make its round free."""
    start().wait_ready()
    publish(installation, queue, b"stripped", tenant="a")
    rounds = 0
    ends = time.monotonic() + 60
    while installation.depth("manual-review.pending") == 0:
        assert time.monotonic() < ends, f"it is still retried after {rounds} rounds"
        method, _, body = installation.channel.basic_get(queue)
        if method is None or body is None:
            time.sleep(0.02)
            continue
        rounds += 1
        installation.channel.basic_ack(method.delivery_tag or 0)
        publish(installation, queue, body)  # a proxy that loses all headers
        reject_all(installation, queue, 1)
    assert 4 <= rounds <= 7, "three retries, and at most every second round may be free"
    reviewed, _ = installation.wait_message("manual-review.pending")
    assert "3 of 3 retries spent" in str((reviewed.headers or {})["review_reason"])


def test_identity_a_message_sent_again_leaves_the_older_one_in_review(installation: Installation, start: Start) -> None:
    start().wait_ready()
    queue = installation.declare("quick.orders")
    installation.request(queue, "ORDER-4711", b"the same", error_class="final")
    wait_for(lambda: installation.depth("manual-review.pending") == 1, what="the first in review")
    wait_for(lambda: installation.transitions("in_review") == 1, what="the first in review in the audit")
    installation.request(queue, "ORDER-4711", b"the same", error_class="final")
    wait_for(lambda: installation.transitions("in_review") == 2, what="the second in review in the audit")
    found = installation.states("ORDER-4711")
    assert [state for _, state in found] == ["in_review", "in_review"]
    assert len({retry for retry, _ in found}) == 2, "two retries, listed and redriven apart"

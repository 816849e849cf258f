"""A message in retry.unroutable returns after its binding is made again, waits for its delay, or goes to review."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.waiting import wait_for

Start = Callable[..., Router]


def test_a_queue_deleted_and_declared_anew_is_bound_again(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("quick.orders")
    for number in range(20):
        installation.request(queue, f"m{number}")
    wait_for(lambda: router.metric("retries_scheduled_total") == 20)
    installation.channel.queue_delete(queue)
    installation.declare(queue)
    assert sorted(installation.take_ids(queue, 20)) == sorted(f"m{number}" for number in range(20))
    assert router.metric("tarry_unroutable_total", outcome="sent_on") >= 1
    wait_for(lambda: installation.depth("retry.unroutable") == 0)


def test_a_queue_that_is_gone_means_review(installation: Installation, start: Start) -> None:
    start().wait_ready()
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1", body=b"still here")
    wait_for(lambda: installation.transitions("scheduled") == 1)
    installation.channel.queue_delete(queue)
    properties, body = installation.wait_message("manual-review.pending")
    assert body == b"still here"
    assert properties.headers is not None
    assert properties.headers["review_reason"] == "unroutable: the origin queue 'quick.orders' does not exist"
    assert properties.headers["tarry-queue"] == queue
    wait_for(lambda: installation.transitions("in_review") == 1)


def test_a_missing_rung_of_the_ladder_makes_nobody_early(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("orders")
    installation.request(queue, "warm-up")
    installation.take_ids(queue, 1)
    installation.channel.queue_delete("retry.ladder.1.2s")
    installation.request(queue, "m1", error_class="rate_limited", retry_after_ms=2_500)
    properties, _ = installation.wait_message(queue)
    assert properties.message_id == "m1"
    assert router.metric("tarry_unroutable_total", outcome="sent_on") >= 1
    late = [line["drift_ms"] for line in returns(installation)]
    assert min(late) >= 0


def returns(installation: Installation) -> list[dict[str, int]]:
    def found() -> list[dict[str, int]]:
        with psycopg.connect(installation.dsn) as connection:
            rows = connection.execute("select detail from transition where state = 'returned'").fetchall()
        return [row[0] for row in rows] if len(rows) == 2 else []

    return wait_for(found)


def test_an_unroutable_message_without_our_headers_goes_to_review(installation: Installation, start: Start) -> None:
    start().wait_ready()
    installation.channel.basic_publish("retry.unroutable", "somewhere", b"lost property")
    properties, body = installation.wait_message("manual-review.pending")
    assert body == b"lost property"
    assert properties.headers is not None
    assert "unroutable" in str(properties.headers["review_reason"])

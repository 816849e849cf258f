"""What comes to retry.unroutable is bound again and sent on, or waits out its delay, or goes to a person."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place, Router

Start = Callable[..., Router]


def test_a_queue_deleted_and_declared_anew_is_bound_again(place: Place, start: Start) -> None:
    router = start().wait_ready()
    queue = place.origin("quick.orders")
    for number in range(20):
        place.request(queue, f"m{number}")
    wait_for(lambda: router.metric("retries_scheduled_total") == 20)
    place.channel.queue_delete(queue)
    place.origin(queue)
    assert sorted(place.take(queue, 20)) == sorted(f"m{number}" for number in range(20))
    assert router.metric("tarry_unroutable_total", outcome="sent_on") >= 1
    wait_for(lambda: place.depth("retry.unroutable") == 0)


def test_a_queue_that_is_gone_means_review(place: Place, start: Start) -> None:
    start().wait_ready()
    queue = place.origin("quick.orders")
    place.request(queue, "m1", body=b"still here")
    wait_for(lambda: place.transitions("scheduled") == 1)
    place.channel.queue_delete(queue)
    properties, body = place.wait_message("manual-review.pending")
    assert body == b"still here"
    assert properties.headers is not None
    assert properties.headers["review_reason"] == "unroutable: the origin queue 'quick.orders' does not exist"
    assert properties.headers["tarry-queue"] == queue
    wait_for(lambda: place.transitions("in_review") == 1)


def test_a_missing_rung_of_the_ladder_makes_nobody_early(place: Place, start: Start) -> None:
    router = start().wait_ready()
    queue = place.origin("orders")
    place.request(queue, "warm-up")
    place.take(queue, 1)
    place.channel.queue_delete("retry.ladder.1.2s")
    place.request(queue, "m1", error_class="rate_limited", retry_after_ms=2_500)
    properties, _ = place.wait_message(queue)
    assert properties.message_id == "m1"
    assert router.metric("tarry_unroutable_total", outcome="sent_on") >= 1
    late = [line["drift_ms"] for line in returns(place)]
    assert min(late) >= 0


def returns(place: Place) -> list[dict[str, int]]:
    def found() -> list[dict[str, int]]:
        with psycopg.connect(place.dsn) as connection:
            rows = connection.execute("select detail from transition where state = 'returned'").fetchall()
        return [row[0] for row in rows] if len(rows) == 2 else []

    return wait_for(found)


def test_a_stray_without_our_headers_goes_to_review(place: Place, start: Start) -> None:
    start().wait_ready()
    place.channel.basic_publish("retry.unroutable", "somewhere", b"lost property")
    properties, body = place.wait_message("manual-review.pending")
    assert body == b"lost property"
    assert properties.headers is not None
    assert "unroutable" in str(properties.headers["review_reason"])

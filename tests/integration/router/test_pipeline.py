"""What a router does with a request, as seen from the queue, the log and the metrics."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.waiting import wait_for

Start = Callable[..., Router]


def test_a_request_comes_back_to_its_queue_and_then_to_review(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("orders")
    installation.request(queue, "m1", body=b"the payload")
    properties, body = installation.wait_message(queue)
    assert body == b"the payload"
    assert properties.headers is not None
    installation.request(queue, "m2", retry_count=2)
    reviewed, _ = installation.wait_message("manual-review.pending")
    assert reviewed.headers is not None
    assert "2 of 2 retries spent" in str(reviewed.headers["review_reason"])
    assert router.metric("retries_scheduled_total", queue=queue) == 1
    wait_for(lambda: router.metric("retries_exhausted_total", queue=queue) == 1, what="the end to be counted")
    assert router.metric("tarry_dead_total", queue=queue) == 1
    wait_for(lambda: router.metric("retries_executed_total", queue=queue, status="returned") == 1)


def test_every_action_has_one_line_without_the_payload(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("orders")
    installation.request(queue, "m1", body=b"secret-payload", error_type="Timeout", api_key="secret-header")
    installation.request(queue, "m2", error_class="final")
    installation.request("no.such.queue", "m3")
    installation.take_ids("manual-review.pending", 2)
    installation.wait_message(queue)
    scheduled = router.wait_logged("scheduled")
    assert {
        name: scheduled[name] for name in ("message_id", "queue", "attempt", "error_class", "delay_ms", "tier")
    } == {
        "message_id": "m1",
        "queue": queue,
        "attempt": 1,
        "error_class": "retryable",
        "delay_ms": 250,
        "tier": "retry.delay.250ms",
    }
    assert scheduled["due_ms"] > 0
    assert len(scheduled["retry_id"]) == 36
    assert {line["message_id"]: line["reason"][:21] for line in router.logged("sent to review")} == {
        "m2": "the error is final: i",
        "m3": "the origin queue 'no.",
    }
    text = router.log.read_text()
    assert "secret" not in text
    assert "guest:guest" not in text


def test_a_request_sent_twice_is_scheduled_once(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("slow.orders")
    for _ in range(3):
        installation.request(queue, "m1")
    wait_for(lambda: router.metric("tarry_duplicates_total") == 2)
    assert installation.depth("retry.delay.5m") == 1
    assert len(router.logged("duplicate")) == 2


def test_two_routers_share_the_work_and_never_do_it_twice(installation: Installation, start: Start) -> None:
    one, other = start(TARRY_BATCH="5").wait_ready(), start(TARRY_BATCH="5").wait_ready()
    queue = installation.declare("quick.orders")
    for number in range(200):
        installation.request(queue, f"m{number}")
    assert sorted(installation.take_ids(queue, 200)) == sorted(f"m{number}" for number in range(200))
    assert one.metric("retries_scheduled_total") > 0
    assert other.metric("retries_scheduled_total") > 0
    assert installation.depth(queue) == 0


def test_the_depth_of_the_tiers_is_a_metric(installation: Installation, start: Start) -> None:
    queue = installation.declare("slow.orders")
    installation.request(queue, "m1")
    router = start()
    wait_for(lambda: router.metric("retry_queue_depth") == 1, deadline=40, what="the depth to be seen")


def test_console_logs_are_for_people(installation: Installation, start: Start) -> None:
    router = start(TARRY_LOG="console")
    queue = installation.declare("orders")
    installation.request(queue, "m1")
    installation.wait_message(queue)
    wait_for(lambda: "scheduled" in router.log.read_text())
    assert not router.log.read_text().startswith("{")

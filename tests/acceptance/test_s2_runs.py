"""S2, the run processor: final, retryable and rate limited errors; 60 s doubling to an hour, eight attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.acceptance.shipped import REVIEW, Arrival, ShippedService, serving_a_file
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

SCALE = 1e-4
"""A minute becomes 6 ms, an hour 360 ms."""
DELAYS = [6, 12, 24, 48, 96, 192, 360, 360]
QUEUE = "runs.process"


@pytest.fixture(scope="module")
def service(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShippedService]:
    with serving_a_file(broker, services, tmp_path_factory.mktemp("place"), SCALE) as made:
        yield made


def fail(service: ShippedService, message_id: str, **said: Any) -> None:
    service.request(b"run", message_id=message_id, original_queue=QUEUE, **said)


def test_the_run_processors_retries(service: ShippedService) -> None:
    service.queue(QUEUE)

    # Retryable: the schedule to its end, then a person.
    service.work(QUEUE, "run-1")
    service.follow(QUEUE, service.arrival(QUEUE))
    assert service.delays("run-1", 8) == DELAYS
    assert service.seen[-1].headers["review_reason"] == "exhausted: 8 of 8 retries spent"

    # Final, by its type and by what the request says: never retried.
    fail(service, "run-2", error_type="schema.ValidationError")
    fail(service, "run-3", error_class="final", error_reason="no such model")
    for _ in range(2):
        assert service.reviewed().headers["review_reason"] == "the error is final: it is not worth a retry"
    assert service.depth(QUEUE) == 0

    # Rate limited with a wait, twelve times over: as told, and no attempt is spent.
    said: dict[str, str | int] = {}
    for _ in range(12):
        fail(service, "run-4", error_class="rate_limited", retry_after_ms=125, **said)
        arrival = service.arrival(QUEUE)
        arrival.assert_on_time()
        assert (arrival.headers["tarry-count"], arrival.headers["retry_count"]) == (0, 0)
        said = {name: value for name, value in arrival.headers.items() if name.startswith("tarry-")}
        service.ack(arrival)
    assert service.delays("run-4", 12) == [125] * 12

    # Without a wait it backs off as usual, and does spend one.
    fail(service, "run-4", error_type="RateLimitError", **said)
    arrival = service.arrival(QUEUE)
    assert arrival.headers["tarry-count"] == 1
    service.ack(arrival)
    assert service.delays("run-4", 13)[-1] == 6
    assert service.actions("scheduled", "run-4")[-1]["error_class"] == "rate_limited"

    # Retries wait elsewhere, so new work is never behind them.
    for number in range(50):
        fail(service, f"waiting-{number}", error_class="rate_limited", retry_after_ms=20_000)
    service.work(QUEUE, "new")
    assert service.arrival(QUEUE).properties.message_id == "new"
    assert service.depth(REVIEW) == 0


NEW_WORK = 20
OWN, NEW, RETURNED = 1, 2, 5
"""Priorities: of the old message when it was new, of new work, and of what the shipped policy returns. Without the last
one the old message would be behind all new work."""


def publish(service: ShippedService, queue: str, message_id: str, priority: int | None) -> None:
    about = pika.BasicProperties(delivery_mode=2, message_id=message_id, priority=priority)
    service.channel.basic_publish("", queue, b"run", about, mandatory=True)


def back(service: ShippedService, queue: str, count: int, own: str = str(OWN)) -> Arrival:
    """The first message of the queue, once the old one has returned to those that are there."""
    wait_for(lambda: service.depth(queue) == NEW_WORK + 1, what=f"the retry to return to {queue}")
    found = service.arrival(queue)
    assert (found.properties.message_id, found.properties.priority) == ("old", RETURNED)
    assert (found.headers["tarry-count"], found.headers["tarry-priority"]) == (count, own)
    return found


def priority_queues(broker: SharedBroker) -> dict[str, dict[str, Any]]:
    """Queues that support priorities: on RabbitMQ 4.3 also quorum queues, without any argument."""
    classic: dict[str, dict[str, Any]] = {"runs.classic": {"x-max-priority": 10}}
    return classic if broker.version.startswith("3.") else classic | {"runs.quorum": {"x-queue-type": "quorum"}}


def test_the_run_processors_old_work_goes_first(service: ShippedService, broker: SharedBroker) -> None:
    for queue, arguments in priority_queues(broker).items():
        service.channel.queue_declare(queue, durable=True, arguments=arguments)
        assert f"return_priority {RETURNED} of policy 'runs': retries are delivered before" in service.tarry(
            "attach", queue
        )
        publish(service, queue, "old", OWN)
        arrival = first = service.arrival(queue)
        for number in range(NEW_WORK):
            publish(service, queue, f"new-{number}", NEW)

        # Bare rejects: one retry that is counted to its end, first in its queue each time.
        for count in range(1, 9):
            service.reject(arrival)
            arrival = back(service, queue, count)
            first = first if count > 1 else arrival
            assert arrival.headers["tarry-id"] == first.headers["tarry-id"]
        service.reject(arrival)
        reviewed = service.arrival(REVIEW)
        assert (reviewed.properties.priority, "tarry-priority" in reviewed.headers) == (OWN, False)
        assert reviewed.headers["review_reason"] == "exhausted: 8 of 8 retries spent"
        service.channel.basic_nack(reviewed.tag, requeue=True)

        # What a person sends back is old work, too.
        service.tarry("review", "redrive", "--queue", queue, "--yes")
        arrival = back(service, queue, 0)

        # A consumer that copies the properties and loses tarry's headers: it is the same message, counted on. It is
        # known by what the audit has recorded, and these delays are of milliseconds.
        service.reject(arrival)
        arrival = back(service, queue, 1)
        wait_for(lambda: service.installation.states("old")[-1][1] == "returned", what="the return to be recorded")
        headers = {"original_queue": queue}
        about = pika.BasicProperties(delivery_mode=2, message_id="old", priority=RETURNED, headers=headers)
        service.channel.basic_publish("", "retry.scheduled", b"run", about, mandatory=True)
        service.ack(arrival)
        arrival = back(service, queue, 2, own=str(RETURNED))
        assert arrival.headers["tarry-id"] == first.headers["tarry-id"]
        service.ack(arrival)
        assert [service.arrival(queue).properties.message_id for _ in range(2)] == ["new-0", "new-1"]


def test_the_run_processor_is_told_where_old_work_cannot_go_first(service: ShippedService) -> None:
    service.channel.queue_declare("runs.plain", durable=True)
    why = f"return_priority {RETURNED} of policy 'runs' has no effect: a classic queue without x-max-priority ignores"
    assert why in service.tarry("attach", "runs.plain")
    assert why in service.tarry("topology", "verify")

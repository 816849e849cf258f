"""SIGTERM finishes the batch and leaves within ten seconds, whoever does not answer."""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.proxy import Proxy
from tests.harness.spaces import with_port
from tests.harness.waiting import wait_for
from tests.integration.router.serving import IN_TIME, Place, Router

Start = Callable[..., Router]
Through = Callable[[str], Proxy]


def test_a_busy_router_finishes_what_it_began(place: Place, start: Start) -> None:
    queue = place.origin("slow.orders")
    for number in range(2_000):
        place.request(queue, f"m{number}")
    router = start(TARRY_BATCH="50")
    wait_for(lambda: router.metric("retries_scheduled_total") > 0, what="it to be busy")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0
    assert router.lines()[-1]["event"] == "stopped"
    start().wait_ready()
    wait_for(lambda: place.depth("retry.scheduled") == 0)
    wait_for(lambda: place.transitions("scheduled") == 2_000)
    assert place.depth("retry.delay.5m") == 2_000


def test_it_leaves_in_time_when_the_broker_is_gone(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.amqp_url)
    router = start(RABBITMQ_URL=with_port(place.amqp_url, wire.port)).wait_ready()
    wire.refuse()
    wire.cut()
    router.wait_said("connection lost")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0


def test_it_leaves_in_time_when_the_broker_does_not_answer(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.amqp_url)
    router = start(RABBITMQ_URL=with_port(place.amqp_url, wire.port)).wait_ready()
    wire.blackhole()
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0


def test_it_leaves_in_time_while_it_waits_for_a_broker(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.amqp_url)
    wire.blackhole()
    router = start(RABBITMQ_URL=with_port(place.amqp_url, wire.port))
    router.wait_said("started")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0


def test_it_leaves_in_time_when_postgres_hangs(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.dsn)
    router = start(DATABASE_URL=with_port(place.dsn, wire.port)).wait_ready()
    wire.blackhole()
    place.request(place.origin("slow.orders"), "m1")
    wait_for(lambda: place.depth("retry.scheduled") == 0, what="it to take the request")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0
    start().wait_ready()
    wait_for(lambda: place.depth("retry.delay.5m") == 1, what="the request to be taken over")

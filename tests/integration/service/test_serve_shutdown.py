"""SIGTERM finishes the batch and exits within ten seconds, even if a peer does not answer."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import IN_TIME, Router
from tests.support.spaces import with_port
from tests.support.waiting import wait_for

Start = Callable[..., Router]
Through = Callable[[str], Proxy]


def test_a_busy_router_finishes_what_it_began(installation: Installation, start: Start) -> None:
    queue = installation.declare("slow.orders")
    for number in range(2_000):
        installation.request(queue, f"m{number}")
    router = start(TARRY_BATCH="50")
    wait_for(lambda: router.metric("retries_scheduled_total") > 0, what="it to be busy")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0
    assert router.lines()[-1]["event"] == "stopped"
    start().wait_ready()
    wait_for(lambda: installation.depth("retry.scheduled") == 0)
    wait_for(lambda: installation.transitions("scheduled") == 2_000)
    assert installation.depth("retry.delay.5m") == 2_000


def test_it_leaves_in_time_when_the_broker_is_gone(installation: Installation, start: Start, proxy: Through) -> None:
    wire = proxy(installation.amqp_url)
    router = start(RABBITMQ_URL=with_port(installation.amqp_url, wire.port)).wait_ready()
    wire.refuse()
    wire.cut()
    router.wait_logged("connection lost")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0


def test_it_leaves_in_time_when_the_broker_does_not_answer(
    installation: Installation, start: Start, proxy: Through
) -> None:
    wire = proxy(installation.amqp_url)
    router = start(RABBITMQ_URL=with_port(installation.amqp_url, wire.port)).wait_ready()
    wire.blackhole()
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0


def test_it_leaves_in_time_while_it_waits_for_a_broker(
    installation: Installation, start: Start, proxy: Through
) -> None:
    wire = proxy(installation.amqp_url)
    wire.blackhole()
    router = start(RABBITMQ_URL=with_port(installation.amqp_url, wire.port))
    router.wait_logged("started")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0


def test_it_leaves_in_time_when_postgres_hangs(installation: Installation, start: Start, proxy: Through) -> None:
    wire = proxy(installation.dsn)
    router = start(DATABASE_URL=with_port(installation.dsn, wire.port)).wait_ready()
    wire.blackhole()
    installation.request(installation.declare("slow.orders"), "m1")
    wait_for(lambda: installation.depth("retry.scheduled") == 0, what="it to take the request")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0
    start().wait_ready()
    wait_for(lambda: installation.depth("retry.delay.5m") == 1, what="the request to be taken over")

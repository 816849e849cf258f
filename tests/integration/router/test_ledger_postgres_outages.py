"""Postgres away, hanging or late: retries keep flowing, and the history is complete once it is back."""

from __future__ import annotations

from collections.abc import Callable

import pika

from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import Router
from tests.support.spaces import with_port
from tests.support.waiting import wait_for

Start = Callable[..., Router]
Through = Callable[[str], Proxy]


def test_retries_flow_without_postgres_and_are_recorded_later(
    installation: Installation, start: Start, proxy: Through
) -> None:
    wire = proxy(installation.dsn)
    router = start(DATABASE_URL=with_port(installation.dsn, wire.port)).wait_ready()
    queue = installation.declare("quick.orders")
    wire.refuse()
    wire.cut()
    for number in range(30):
        installation.request(queue, f"m{number}")
    assert len(installation.take_ids(queue, 30)) == 30
    status, reasons = router.ready()
    assert status == 200
    assert len(reasons) == 1
    assert router.metric("tarry_degraded") == 1
    wire.heal()
    wait_for(lambda: installation.transitions("scheduled") == 30, what="30 spooled records")
    wait_for(lambda: installation.transitions("returned") == 30, what="30 returns")
    router.wait_ready()


def test_a_postgres_that_hangs_is_not_waited_for(installation: Installation, start: Start, proxy: Through) -> None:
    wire = proxy(installation.dsn)
    start(DATABASE_URL=with_port(installation.dsn, wire.port)).wait_ready()
    queue = installation.declare("quick.orders")
    wire.blackhole()
    installation.request(queue, "m1")
    assert installation.take_ids(queue, 1) == ["m1"]
    wire.heal()
    wait_for(lambda: installation.transitions("returned") == 1, deadline=40, what="its return in the store")


def test_a_duplicate_is_known_from_memory(installation: Installation, start: Start, proxy: Through) -> None:
    wire = proxy(installation.dsn)
    router = start(DATABASE_URL=with_port(installation.dsn, wire.port)).wait_ready()
    queue = installation.declare("slow.orders")
    installation.request(queue, "m1")
    wait_for(lambda: installation.depth("retry.delay.5m") == 1)
    wire.refuse()
    wire.cut()
    installation.request(queue, "m1")
    wait_for(lambda: router.metric("tarry_duplicates_total") == 1)
    assert installation.depth("retry.delay.5m") == 1


def test_a_router_starts_before_postgres_does(installation: Installation, start: Start, proxy: Through) -> None:
    wire = proxy(installation.dsn)
    wire.refuse()
    router = start(DATABASE_URL=with_port(installation.dsn, wire.port))
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1")
    assert installation.take_ids(queue, 1) == ["m1"]
    assert router.ready()[0] == 200
    wire.heal()
    wait_for(lambda: installation.transitions("returned") == 1, what="its return in the store")


def test_what_the_tap_cannot_read_goes_to_review_and_stalls_nobody(installation: Installation, start: Start) -> None:
    start().wait_ready()
    queue = installation.declare("quick.orders")
    about = pika.BasicProperties(headers={"original_queue": queue})
    installation.channel.basic_publish("retry.spool", "", b"{ this is no record", about)
    installation.request(queue, "m1")
    properties, body = installation.wait_message("manual-review.pending")
    assert body == b"{ this is no record"
    assert properties.headers is not None
    assert "not a spooled record" in str(properties.headers["review_reason"])
    assert "tarry-queue" not in properties.headers, "a redrive must not send it there"
    assert installation.take_ids(queue, 1) == ["m1"]
    wait_for(lambda: installation.transitions("returned") == 1)

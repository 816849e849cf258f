"""Postgres away, hanging or late: retries keep flowing, and the history is complete once it is back."""

from __future__ import annotations

from collections.abc import Callable

import pika

from tests.harness.proxy import Proxy
from tests.harness.spaces import with_port
from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place, Router

Start = Callable[..., Router]
Through = Callable[[str], Proxy]


def test_retries_flow_without_postgres_and_are_recorded_later(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.dsn)
    router = start(DATABASE_URL=with_port(place.dsn, wire.port)).wait_ready()
    queue = place.origin("quick.orders")
    wire.refuse()
    wire.cut()
    for number in range(30):
        place.request(queue, f"m{number}")
    assert len(place.take(queue, 30)) == 30
    status, reasons = router.ready()
    assert status == 200
    assert len(reasons) == 1
    assert router.metric("tarry_degraded") == 1
    wire.heal()
    wait_for(lambda: place.transitions("scheduled") == 30, what="30 spooled records")
    wait_for(lambda: place.transitions("returned") == 30, what="30 returns")
    router.wait_ready()


def test_a_postgres_that_hangs_is_not_waited_for(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.dsn)
    start(DATABASE_URL=with_port(place.dsn, wire.port)).wait_ready()
    queue = place.origin("quick.orders")
    wire.blackhole()
    place.request(queue, "m1")
    assert place.take(queue, 1) == ["m1"]
    wire.heal()
    wait_for(lambda: place.transitions("returned") == 1, deadline=40, what="its return in the books")


def test_a_duplicate_is_known_from_memory(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.dsn)
    router = start(DATABASE_URL=with_port(place.dsn, wire.port)).wait_ready()
    queue = place.origin("slow.orders")
    place.request(queue, "m1")
    wait_for(lambda: place.depth("retry.delay.5m") == 1)
    wire.refuse()
    wire.cut()
    place.request(queue, "m1")
    wait_for(lambda: router.metric("tarry_duplicates_total") == 1)
    assert place.depth("retry.delay.5m") == 1


def test_a_router_starts_before_postgres_does(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.dsn)
    wire.refuse()
    router = start(DATABASE_URL=with_port(place.dsn, wire.port))
    queue = place.origin("quick.orders")
    place.request(queue, "m1")
    assert place.take(queue, 1) == ["m1"]
    assert router.ready()[0] == 200
    wire.heal()
    wait_for(lambda: place.transitions("returned") == 1, what="its return in the books")


def test_what_the_tap_cannot_read_goes_to_review_and_stalls_nobody(place: Place, start: Start) -> None:
    start().wait_ready()
    queue = place.origin("quick.orders")
    about = pika.BasicProperties(headers={"original_queue": queue})
    place.channel.basic_publish("retry.spool", "", b"{ this is no record", about)
    place.request(queue, "m1")
    properties, body = place.wait_message("manual-review.pending")
    assert body == b"{ this is no record"
    assert properties.headers is not None
    assert "not a spooled record" in str(properties.headers["review_reason"])
    assert "tarry-queue" not in properties.headers, "a redrive must not send it there"
    assert place.take(queue, 1) == ["m1"]
    wait_for(lambda: place.transitions("returned") == 1)

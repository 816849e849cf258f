"""Connections cut, consumers cancelled, tiers missing or full: requests wait, and nobody else does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import Router
from tests.support.spaces import with_port
from tests.support.waiting import wait_for

Start = Callable[..., Router]
Through = Callable[[str], Proxy]


def test_a_cut_connection_is_opened_again(installation: Installation, start: Start, proxy: Through) -> None:
    wire = proxy(installation.amqp_url)
    router = start(RABBITMQ_URL=with_port(installation.amqp_url, wire.port)).wait_ready()
    queue = installation.declare("quick.orders")
    for round_ in range(3):
        wire.cut()
        installation.request(queue, f"m{round_}")
        assert installation.take_ids(queue, 1) == [f"m{round_}"]
    assert router.metric("tarry_reconnects_total", part="router") >= 3


def test_a_broker_that_is_away_is_waited_for(installation: Installation, start: Start, proxy: Through) -> None:
    wire = proxy(installation.amqp_url)
    wire.refuse()
    router = start(RABBITMQ_URL=with_port(installation.amqp_url, wire.port))
    router.wait_logged("waiting for the broker")
    status, reasons = router.ready()
    assert status == 503
    assert reasons[0].startswith("waiting for the broker: No broker answers")
    assert router.get("/healthz")[0] == 200
    wire.heal()
    router.wait_ready()


def test_a_consumer_that_the_broker_cancels_comes_back(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    installation.channel.queue_delete("retry.scheduled")
    wait_for(lambda: router.ready()[0] == 503, what="the router to notice")
    installation.apply()
    router.wait_ready()
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1")
    assert installation.take_ids(queue, 1) == ["m1"]


def test_what_a_missing_tier_cannot_take_goes_by_the_ladder(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("quick.orders")
    installation.channel.queue_delete("retry.delay.500ms")
    for number in range(20):
        installation.request(queue, f"m{number}")
    assert len(installation.take_ids(queue, 20)) == 20
    assert router.metric("tarry_detours_total", outcome="returned") == 20
    assert router.wait_logged("sent through the ladder")["queue"] == queue
    installation.apply()
    installation.request(queue, "direct")
    assert installation.take_ids(queue, 1) == ["direct"]
    assert router.metric("tarry_detours_total", outcome="returned") == 20


def test_a_full_tier_delays_no_other_request_and_loses_nothing(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    limit = {"pattern": "^retry.delay.5m$", "definition": {"max-length": 5}, "apply-to": "queues"}
    installation.api("policies/{vhost}/full", method="PUT", body=limit)
    wait_for(lambda: installation.api("queues/{vhost}/retry.delay.5m").get("effective_policy_definition"))
    quick, slow = installation.declare("quick.orders"), installation.declare("slow.orders")
    numbers = itertools.count(1)

    def full() -> bool:
        """A limit is no exact one: a few at a time until it bites."""
        installation.request(slow, f"m{next(numbers)}")
        return router.metric("tarry_detours_total", outcome="nacked") >= 5

    wait_for(full, what="the tier to be full")
    installation.request(quick, "other")
    assert installation.take_ids(quick, 1) == ["other"]
    sent = next(numbers)  # those before it, and the other one
    wait_for(lambda: installation.transitions("scheduled") == sent, what="all of them scheduled")
    assert installation.depth("retry.scheduled") == 0


def test_without_tier_and_ladder_a_request_stays_and_the_others_go_on(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    quick, slow = installation.declare("quick.orders"), installation.declare("slow.orders")
    installation.channel.queue_delete("retry.delay.5m")
    installation.channel.exchange_unbind("retry.ladder.3", "retry.delay", "~in:ladder")
    for number in range(20):
        installation.request(slow, f"stuck{number}")
    router.wait_logged("not accepted, will try again")
    for number in range(20):
        installation.request(quick, f"m{number}")
    assert len(installation.take_ids(quick, 20)) == 20
    tries = router.metric("tarry_stuck_total", outcome="returned")
    assert 20 <= tries < 20 * 10, "a busy loop"
    installation.apply()
    wait_for(lambda: installation.depth("retry.delay.5m") == 20)
    assert installation.depth("retry.scheduled") == 0


def test_a_review_queue_that_is_gone_loses_nothing(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    installation.channel.queue_delete("manual-review.pending")
    queue = installation.declare("orders")
    installation.request(queue, "m1", error_class="final")
    router.wait_logged("not accepted")
    installation.apply()
    assert installation.take_ids("manual-review.pending", 1) == ["m1"]

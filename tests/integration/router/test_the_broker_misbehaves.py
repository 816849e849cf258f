"""Connections cut, consumers cancelled, tiers missing or full: requests wait, and nobody else does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.harness.proxy import Proxy
from tests.harness.spaces import with_port
from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place, Router

Start = Callable[..., Router]
Through = Callable[[str], Proxy]


def test_a_cut_connection_is_opened_again(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.amqp_url)
    router = start(RABBITMQ_URL=with_port(place.amqp_url, wire.port)).wait_ready()
    queue = place.origin("quick.orders")
    for round_ in range(3):
        wire.cut()
        place.request(queue, f"m{round_}")
        assert place.take(queue, 1) == [f"m{round_}"]
    assert router.metric("tarry_reconnects_total", part="router") >= 3


def test_a_broker_that_is_away_is_waited_for(place: Place, start: Start, proxy: Through) -> None:
    wire = proxy(place.amqp_url)
    wire.refuse()
    router = start(RABBITMQ_URL=with_port(place.amqp_url, wire.port))
    router.wait_said("waiting for the broker")
    status, reasons = router.ready()
    assert status == 503
    assert reasons[0].startswith("waiting for the broker: No broker answers")
    assert router.get("/healthz")[0] == 200
    wire.heal()
    router.wait_ready()


def test_a_consumer_that_the_broker_cancels_comes_back(place: Place, start: Start) -> None:
    router = start().wait_ready()
    place.channel.queue_delete("retry.scheduled")
    wait_for(lambda: router.ready()[0] == 503, what="the router to notice")
    place.apply()
    router.wait_ready()
    queue = place.origin("quick.orders")
    place.request(queue, "m1")
    assert place.take(queue, 1) == ["m1"]


def test_what_a_missing_tier_cannot_take_goes_by_the_ladder(place: Place, start: Start) -> None:
    router = start().wait_ready()
    queue = place.origin("quick.orders")
    place.channel.queue_delete("retry.delay.500ms")
    for number in range(20):
        place.request(queue, f"m{number}")
    assert len(place.take(queue, 20)) == 20
    assert router.metric("tarry_detours_total", outcome="returned") == 20
    assert router.wait_said("sent by the ladder")["queue"] == queue
    place.apply()
    place.request(queue, "direct")
    assert place.take(queue, 1) == ["direct"]
    assert router.metric("tarry_detours_total", outcome="returned") == 20


def test_a_full_tier_holds_nobody_up_and_loses_nothing(place: Place, start: Start) -> None:
    router = start().wait_ready()
    limit = {"pattern": "^retry.delay.5m$", "definition": {"max-length": 5}, "apply-to": "queues"}
    place.api("policies/{vhost}/full", method="PUT", body=limit)
    wait_for(lambda: place.api("queues/{vhost}/retry.delay.5m").get("effective_policy_definition"))
    quick, slow = place.origin("quick.orders"), place.origin("slow.orders")
    numbers = itertools.count(1)

    def full() -> bool:
        """A limit is no exact one: a few at a time until it bites."""
        place.request(slow, f"m{next(numbers)}")
        return router.metric("tarry_detours_total", outcome="nacked") >= 5

    wait_for(full, what="the tier to be full")
    place.request(quick, "other")
    assert place.take(quick, 1) == ["other"]
    sent = next(numbers)  # those before it, and the other one
    wait_for(lambda: place.transitions("scheduled") == sent, what="all of them scheduled")
    assert place.depth("retry.scheduled") == 0


def test_without_tier_and_ladder_a_request_stays_and_the_others_go_on(place: Place, start: Start) -> None:
    router = start().wait_ready()
    quick, slow = place.origin("quick.orders"), place.origin("slow.orders")
    place.channel.queue_delete("retry.delay.5m")
    place.channel.exchange_unbind("retry.ladder.3", "retry.delay", "~in:ladder")
    for number in range(20):
        place.request(slow, f"stuck{number}")
    router.wait_said("not taken, will try again")
    for number in range(20):
        place.request(quick, f"m{number}")
    assert len(place.take(quick, 20)) == 20
    tries = router.metric("tarry_stuck_total", outcome="returned")
    assert 20 <= tries < 20 * 10, "a busy loop"
    place.apply()
    wait_for(lambda: place.depth("retry.delay.5m") == 20)
    assert place.depth("retry.scheduled") == 0


def test_a_review_queue_that_is_gone_loses_nothing(place: Place, start: Start) -> None:
    router = start().wait_ready()
    place.channel.queue_delete("manual-review.pending")
    queue = place.origin("orders")
    place.request(queue, "m1", error_class="final")
    router.wait_said("not taken")
    place.apply()
    assert place.take("manual-review.pending", 1) == ["m1"]

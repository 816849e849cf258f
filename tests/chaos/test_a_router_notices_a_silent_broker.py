"""A connection that nothing passes through any more, and that nobody closes: only heartbeats can tell."""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.proxy import Proxy
from tests.harness.spaces import with_port
from tests.harness.waiting import wait_for
from tests.integration.router.conftest import place, start
from tests.integration.router.serving import Place, Router

__all__ = ["place", "start"]

NOTICED = 90
"""Seconds. A window without a byte is one heartbeat and five seconds more, and the first one does not count."""


def test_it_gives_the_connection_up_and_opens_another(
    place: Place, start: Callable[..., Router], proxy: Callable[[str], Proxy]
) -> None:
    wire = proxy(place.amqp_url)
    router = start(RABBITMQ_URL=f"{with_port(place.amqp_url, wire.port)}?heartbeat=2").wait_ready()
    queue = place.origin("quick.orders")
    wire.blackhole()
    place.request(queue, "m1")
    wait_for(lambda: router.ready()[0] == 503, deadline=NOTICED, what="the router to notice")
    reason = router.wait_said("connection lost")["reason"].lower()
    # The broker misses heartbeats as well, and may be the first to hang up.
    assert any(word in reason for word in ("heartbeat", "nothing was heard", "reset by peer"))
    wire.heal()
    assert place.take(queue, 1, deadline=60) == ["m1"]
    router.wait_ready()

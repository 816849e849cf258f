"""A connection that nothing passes through any more, and that nobody closes: only heartbeats can tell."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import Router
from tests.support.spaces import with_port
from tests.support.waiting import wait_for

NOTICED = 90
"""Seconds. A window without a byte is one heartbeat and five seconds more, and the first one does not count."""


def test_it_gives_the_connection_up_and_opens_another(
    installation: Installation, start: Callable[..., Router], proxy: Callable[[str], Proxy]
) -> None:
    wire = proxy(installation.amqp_url)
    router = start(RABBITMQ_URL=f"{with_port(installation.amqp_url, wire.port)}?heartbeat=2").wait_ready()
    queue = installation.declare("quick.orders")
    wire.blackhole()
    installation.request(queue, "m1")
    wait_for(lambda: router.ready()[0] == 503, deadline=NOTICED, what="the router to notice")
    reason = router.wait_logged("connection lost")["reason"].lower()
    # The broker misses heartbeats as well, and may be the first to hang up.
    assert any(word in reason for word in ("heartbeat", "nothing was received", "reset by peer"))
    wire.heal()
    assert installation.take_ids(queue, 1, deadline=60) == ["m1"]
    router.wait_ready()

"""A broker with an alarm takes no publishes: requests stay, readiness says why, and it goes on by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from tarry import embedded
from tests.harness.spaces import Database, make_vhost
from tests.harness.waiting import wait_for
from tests.integration.router.serving import IN_TIME, Place, routers


def test_an_alarm_holds_requests_back_and_readiness_says_why(
    private_broker: Callable[..., embedded.Broker], database: Database, tmp_path: Path
) -> None:
    node = private_broker()
    vhost = make_vhost(node.amqp_url, node.management_url, node.version)
    place = Place(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", vhost.api)
    with contextlib.closing(place), routers(place) as start:
        queue = place.origin("quick.orders")
        place.request(queue, "m1")
        node.ctl("set_vm_memory_high_watermark", "0.00001")
        router = start()
        wait_for(lambda: any("alarm" in reason for reason in router.ready()[1]), what="the alarm")
        assert router.ready()[0] == 503
        assert router.metric("tarry_blocked") == 1
        assert router.metric("retries_scheduled_total") == 0
        node.ctl("set_vm_memory_high_watermark", "0.6")
        router.wait_ready()
        assert place.take(queue, 1) == ["m1"]


def test_a_router_leaves_in_time_during_an_alarm(
    private_broker: Callable[..., embedded.Broker], database: Database, tmp_path: Path
) -> None:
    node = private_broker()
    vhost = make_vhost(node.amqp_url, node.management_url, node.version)
    place = Place(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", vhost.api)
    with contextlib.closing(place), routers(place) as start:
        queue = place.origin("slow.orders")
        for number in range(50):
            place.request(queue, f"m{number}")
        node.ctl("set_vm_memory_high_watermark", "0.00001")
        router = start()
        wait_for(lambda: router.process.poll() is None and router.said("started"))
        assert router.stop() < IN_TIME
        assert router.process.returncode == 0
        node.ctl("set_vm_memory_high_watermark", "0.6")
        start().wait_ready()
        wait_for(lambda: place.depth("retry.delay.5m") == 50)

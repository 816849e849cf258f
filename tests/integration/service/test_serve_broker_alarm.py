"""A broker with an alarm takes no publishes: requests stay, readiness says why, and it goes on by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tarry import embedded
from tests.support.installation import Installation
from tests.support.router import IN_TIME, routers
from tests.support.spaces import Database, make_vhost
from tests.support.waiting import wait_for


@pytest.mark.chaos
def test_an_alarm_stops_requests_and_readiness_says_why(
    private_broker: Callable[..., embedded.Broker], database: Database, tmp_path: Path
) -> None:
    node = private_broker()
    vhost = make_vhost(node.amqp_url, node.management_url, node.version)
    installation = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology").apply()
    with contextlib.closing(installation), routers(installation) as start:
        queue = installation.declare("quick.orders")
        installation.request(queue, "m1")
        node.ctl("set_vm_memory_high_watermark", "0.00001")
        router = start()
        wait_for(lambda: any("alarm" in reason for reason in router.ready()[1]), what="the alarm")
        assert router.ready()[0] == 503
        assert router.metric("tarry_blocked") == 1
        assert router.metric("retries_scheduled_total") == 0
        node.ctl("set_vm_memory_high_watermark", "0.6")
        router.wait_ready()
        assert installation.take_ids(queue, 1) == ["m1"]


@pytest.mark.chaos
def test_a_router_leaves_in_time_during_an_alarm(
    private_broker: Callable[..., embedded.Broker], database: Database, tmp_path: Path
) -> None:
    node = private_broker()
    vhost = make_vhost(node.amqp_url, node.management_url, node.version)
    installation = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology").apply()
    with contextlib.closing(installation), routers(installation) as start:
        queue = installation.declare("slow.orders")
        for number in range(50):
            installation.request(queue, f"m{number}")
        node.ctl("set_vm_memory_high_watermark", "0.00001")
        router = start()
        wait_for(lambda: router.process.poll() is None and router.logged("started"))
        assert router.stop() < IN_TIME
        assert router.process.returncode == 0
        node.ctl("set_vm_memory_high_watermark", "0.6")
        start().wait_ready()
        wait_for(lambda: installation.depth("retry.delay.5m") == 50)

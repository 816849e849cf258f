"""A changed file or SIGHUP reloads the policies; a bad one keeps the old ones and says so."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

from tests.support.installation import POLICIES, Installation
from tests.support.router import Router
from tests.support.waiting import wait_for

Start = Callable[..., Router]


def test_a_changed_file_is_used_without_a_restart(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("slow.orders")
    changed = POLICIES.replace('"5m"', '"500ms"')
    installation.write_policies(changed)
    router.wait_logged("topology reloaded")
    installation.request(queue, "m1")
    assert installation.take_ids(queue, 1) == ["m1"]


def test_sighup_reads_the_files_at_once(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    installation.write_policies(POLICIES.replace("max_retries = 2", "max_retries = 1"))
    router.process.send_signal(signal.SIGHUP)
    router.wait_logged("topology reloaded")
    assert router.metric("tarry_policy_info", policy="default", max_retries="1") == 1
    assert router.metric("tarry_policy_info", policy="default", max_retries="2") == 0
    policies = json.loads(router.get("/api/v1/topology")[1])["policies"]
    assert {one["name"]: one["max_retries"] for one in policies}["default"] == 1


def test_a_bad_file_keeps_the_old_policies_and_says_so(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    installation.write_policies("[[policy]]\nname = 'default'\nschedule = ['soon']\nmax_retries = 1\n")
    said = router.wait_logged("the old one stays")
    assert any("soon" in problem for problem in said["problems"])
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1")
    assert installation.take_ids(queue, 1) == ["m1"]
    installation.write_policies(POLICIES.replace("max_retries = 2", "max_retries = 1"))
    router.wait_logged("topology reloaded")


def test_tiers_that_the_broker_lacks_are_waited_for(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("slow.orders")
    installation.write_policies(POLICIES.replace('"5m"', '"700ms"'))
    said = router.wait_logged("the broker is not ready for it")
    assert "tarry topology apply" in said["event"]
    assert any("retry.delay.700ms" in problem for problem in said["problems"])
    installation.request(queue, "old")
    wait_for(lambda: installation.depth("retry.delay.5m") == 1, what="the old policy to be used")
    installation.apply()
    router.wait_logged("topology reloaded")
    installation.request(queue, "new")
    assert installation.take_ids(queue, 1) == ["new"]


def test_names_need_a_restart(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    installation.write_policies('[names]\nprefix = "other."\n' + POLICIES)
    assert "restart" in router.wait_logged("the old one stays")["problems"][0]

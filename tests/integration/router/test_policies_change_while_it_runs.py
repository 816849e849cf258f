"""A changed file or SIGHUP reloads the policies; a bad one keeps the old ones and says so."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

from tests.harness.waiting import wait_for
from tests.integration.router.serving import POLICIES, Place, Router

Start = Callable[..., Router]


def test_a_changed_file_is_used_without_a_restart(place: Place, start: Start) -> None:
    router = start().wait_ready()
    queue = place.origin("slow.orders")
    changed = POLICIES.replace('"5m"', '"500ms"')
    place.write_policies(changed)
    router.wait_said("topology reloaded")
    place.request(queue, "m1")
    assert place.take(queue, 1) == ["m1"]


def test_sighup_reads_the_files_at_once(place: Place, start: Start) -> None:
    router = start().wait_ready()
    place.write_policies(POLICIES.replace("max_retries = 2", "max_retries = 1"))
    router.process.send_signal(signal.SIGHUP)
    router.wait_said("topology reloaded")
    assert router.metric("tarry_policy_info", policy="default", max_retries="1") == 1
    assert router.metric("tarry_policy_info", policy="default", max_retries="2") == 0
    policies = json.loads(router.get("/api/v1/topology")[1])["policies"]
    assert {one["name"]: one["max_retries"] for one in policies}["default"] == 1


def test_a_bad_file_keeps_the_old_policies_and_says_so(place: Place, start: Start) -> None:
    router = start().wait_ready()
    place.write_policies("[[policy]]\nname = 'default'\nschedule = ['soon']\nmax_retries = 1\n")
    said = router.wait_said("the old one stays")
    assert any("soon" in problem for problem in said["problems"])
    queue = place.origin("quick.orders")
    place.request(queue, "m1")
    assert place.take(queue, 1) == ["m1"]
    place.write_policies(POLICIES.replace("max_retries = 2", "max_retries = 1"))
    router.wait_said("topology reloaded")


def test_tiers_that_the_broker_lacks_are_waited_for(place: Place, start: Start) -> None:
    router = start().wait_ready()
    queue = place.origin("slow.orders")
    place.write_policies(POLICIES.replace('"5m"', '"700ms"'))
    said = router.wait_said("the broker is not ready for it")
    assert "tarry topology apply" in said["event"]
    assert any("retry.delay.700ms" in problem for problem in said["problems"])
    place.request(queue, "old")
    wait_for(lambda: place.depth("retry.delay.5m") == 1, what="the old policy to be used")
    place.apply()
    router.wait_said("topology reloaded")
    place.request(queue, "new")
    assert place.take(queue, 1) == ["new"]


def test_names_need_a_restart(place: Place, start: Start) -> None:
    router = start().wait_ready()
    place.write_policies('[names]\nprefix = "other."\n' + POLICIES)
    assert "restart" in router.wait_said("the old one stays")["problems"][0]

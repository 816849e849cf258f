"""A policy with a lane: its messages wait in queues of their own, and pass the same gates as all others."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tarry.core.names import Names
from tarry.topology.verify import verify
from tests.acceptance.audited import AuditedInstallation, shared_audited
from tests.support.cli import WIDE, run_cli
from tests.support.router import Router, routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

NAMES = Names()
LANE = 'lane = "critical"'
POLICIES = f"""
[ladder]
levels = 3

[[policy]]
name = "gold"
match = {{ queue = "gold.*" }}
schedule = ["1s"]
max_retries = 3
{LANE}

[[policy]]
name = "default"
schedule = ["1s"]
max_retries = 3
"""
DIVERTED = "select count(*) from diversion where retry_id = %s and diverted_at is not null"
QUICK = ("--grace", "500ms", "--settle", "300ms", "--patience", "5s")


@contextmanager
def installed(
    broker: SharedBroker, services: Services, factory: pytest.TempPathFactory, policies: str = POLICIES
) -> Iterator[AuditedInstallation]:
    with shared_audited(broker, services, factory.mktemp("lanes") / "topology", policies) as made:
        yield made


@pytest.fixture(scope="module")
def installation(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AuditedInstallation]:
    """With a running router. Shared by the tests of this file; each has a queue of its own."""
    with installed(broker, services, tmp_path_factory) as made, routers(made) as start:
        start().wait_ready()
        yield made


def run(installation: AuditedInstallation, *arguments: str) -> str:
    done = run_cli(arguments, installation.environment | WIDE)
    assert done.exit_code == 0, done.output
    return done.stdout


def schedule(installation: AuditedInstallation, queue: str, wait_ms: int = 0) -> str:
    """Requests a retry of a message that is named as its queue, and returns the retry id once it waits. With `wait_ms`
    it waits in the ladder, otherwise in the tier of its policy.
    """
    installation.declare(queue)
    more: dict[str, Any] = {"error_class": "rate_limited", "retry_after_ms": wait_ms} if wait_ms else {}
    installation.request(queue, queue, **more)
    retry = installation.retry_of(queue)
    wait_for(lambda: installation.states(queue)[0][1] != "claimed", what=f"{queue} to be scheduled")
    return retry


def tier_of(installation: AuditedInstallation, retry: str) -> str:
    ((tier,),) = installation.rows("select tier from retry where id = %s", retry)
    return str(tier)


def arrived(installation: AuditedInstallation, queue: str) -> set[str]:
    """Waits for the message, which must be the only one, and not early. Returns the queues that it has waited in."""
    properties, body = installation.wait_message(queue, deadline=60)
    now = time.time_ns() // 1_000_000
    own: Any = properties.headers or {}
    assert (properties.message_id, body) == (queue, b"payload")
    assert now >= own["tarry-due-ms"], "early"
    wait_for(lambda: installation.states(queue)[0][1] == "returned", what=f"the return of {queue}")
    assert installation.get(queue) is None, "a second copy"
    return {death["queue"] for death in own["x-death"]}


def verified(installation: AuditedInstallation) -> None:
    """The audit is balanced now. What is overdue by half a second counts as missing, unless the broker has it."""
    code, answer = installation.audit("verify", *QUICK)
    assert (code, answer["missing"], answer["shortages"]) == (0, [], []), answer


def test_a_message_of_a_lane_waits_in_its_queues_only_and_returns_once(installation: AuditedInstallation) -> None:
    queue = installation.declare("gold.attached")
    run(installation, "attach", queue)
    with_hint = installation.declare("gold.shared")
    retry, other = schedule(installation, queue), schedule(installation, with_hint, 1_500)
    assert tier_of(installation, retry) == "retry.delay~critical.1s"
    assert tier_of(installation, other) == "retry.ladder~critical.1.1s"
    verified(installation)
    assert arrived(installation, queue) == {"retry.delay~critical.1s", "retry.relay~critical.gold.attached"}
    ladder = {"retry.ladder~critical.1.1s", "retry.ladder~critical.0.500ms"}
    assert arrived(installation, with_hint) == {*ladder, "retry.relay~critical"}
    silver = schedule(installation, "silver")
    assert tier_of(installation, silver) == "retry.delay.1s"
    assert arrived(installation, "silver") == {"retry.delay.1s", "retry.relay"}
    verified(installation)
    found = json.loads(run(installation, "explain", "--queue", queue, "--json"))
    assert (found["lane"], found["itinerary"]) == ("critical", [["retry.delay~critical.1s"]] * 2)


def test_a_cancel_diverts_a_message_of_a_lane(installation: AuditedInstallation) -> None:
    retry, kept = schedule(installation, "gold.cancelled", 12_000), schedule(installation, "gold.kept", 12_000)
    assert '"cancelled"' in run(installation, "cancel", retry, "--json")
    wait_for(lambda: installation.number(DIVERTED, retry) == 1, deadline=60, what="the message to be diverted")
    arrived(installation, "gold.kept")
    assert installation.states("gold.cancelled") == [(retry, "cancelled")]
    assert installation.get("gold.cancelled") is None
    assert kept != retry
    verified(installation)


def test_a_retry_now_sends_a_message_of_a_lane_once(installation: AuditedInstallation) -> None:
    retry = schedule(installation, "gold.now", 12_000)
    run(installation, "retry-now", retry)
    properties, _ = installation.wait_message("gold.now")
    own: Any = properties.headers
    assert own["tarry-round"] == 2
    wait_for(lambda: installation.number(DIVERTED, retry) == 1, deadline=60, what="the waiting message to be diverted")
    wait_for(lambda: installation.states("gold.now") == [(retry, "returned")], what="its return")
    assert installation.get("gold.now") is None
    verified(installation)


@pytest.mark.parametrize("what", [["gold.paused"], ["--policy", "gold"]], ids=["destination", "policy"])
def test_a_pause_holds_a_message_of_a_lane(installation: AuditedInstallation, what: list[str]) -> None:
    queue = f"gold.paused{'.by-policy' if len(what) > 1 else ''}"
    retry = schedule(installation, queue, 10_000)
    run(installation, "pause", *what)
    wait_for(lambda: installation.states(queue) == [(retry, "held")], deadline=60, what="it to be held")
    assert installation.depth(queue) == 0
    verified(installation)
    run(installation, "resume", *what)
    arrived(installation, queue)
    verified(installation)


def test_a_message_lost_in_a_lane_is_missed_and_recovered(installation: AuditedInstallation) -> None:
    retry = schedule(installation, "gold.lost", 16_000)
    assert tier_of(installation, retry) == "retry.ladder~critical.2.16s"
    verified(installation)
    assert installation.take("retry.ladder~critical.2.16s") == "gold.lost"

    def missing() -> bool:
        _, answer = installation.audit("verify", "--grace", "500ms", "--settle", "300ms", "--patience", "0s")
        return [one["message_id"] for one in answer["missing"]] == ["gold.lost"]

    installation.wait_checking(missing, "the audit to miss it before it is due")
    code, done = installation.audit("recover", "--yes", *QUICK)
    assert (code, done["sent"]) == (0, 1)
    arrived(installation, "gold.lost")


def test_a_delay_that_the_ladder_does_not_hold_leaves_the_lane(installation: AuditedInstallation) -> None:
    """The router takes it over between its legs, which only the shared relays lead to."""
    retry = schedule(installation, "gold.long", 66_000)
    assert tier_of(installation, retry) == "retry.ladder.2.56s"
    run(installation, "cancel", retry)


def test_a_destination_attached_before_there_was_a_lane_gets_its_relay_by_apply(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> None:
    without = POLICIES.replace(LANE, "")
    with installed(broker, services, tmp_path_factory, without) as installation:
        queue = installation.declare("gold.first")
        run(installation, "attach", queue)
        installation.write_policies(POLICIES)
        installation.apply()
        assert verify(installation.topology, installation.address) == []
        with routers(installation) as start:
            start().wait_ready()
            schedule(installation, queue)
            assert f"retry.relay~critical.{queue}" in arrived(installation, queue)
        run(installation, "detach", queue, "--force")
        there = {about["name"] for about in installation.api("queues/{vhost}")}
        assert there & {f"retry.relay.{queue}", f"retry.relay~critical.{queue}"} == set()


def test_a_lane_that_no_policy_names_drains_and_is_pruned(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing in it is lost or hurried, it can be cancelled, and a router that still has the lane loses nothing."""
    with installed(broker, services, tmp_path_factory) as installation, routers(installation) as start:
        run(installation, "attach", installation.declare("gold.waits"))
        old_files = installation.folder.parent / "old"
        shutil.copytree(installation.folder, old_files)
        old = start(TARRY_TOPOLOGY=str(old_files)).wait_ready()
        waits = schedule(installation, "gold.waits", 20_000)
        cancelled = schedule(installation, "gold.cancelled", 20_000)
        installation.write_policies(POLICIES.replace(LANE, ""))
        installation.apply()
        run(installation, "cancel", cancelled)
        kept = _pruned(installation)["kept"]
        assert "its lane critical still holds" in kept["retry.delay~critical.1s"]
        _around_the_lane(installation, old)
        assert tier_of(installation, waits).startswith("retry.ladder~critical.")
        arrived(installation, "gold.waits")
        wait_for(lambda: installation.number(DIVERTED, cancelled) == 1, deadline=60, what="the message to be diverted")
        assert installation.get("gold.cancelled") is None
        verified(installation)
        installation.wait_checking(lambda: not _pruned(installation)["kept"], "the lane to be pruned")
        found = [about["name"] for kind in ("queues", "exchanges") for about in installation.api(f"{kind}/{{vhost}}")]
        assert [name for name in found if "~critical" in name or name == NAMES.lanes_cancelled] == []
        assert verify(installation.topology, installation.address) == []
        _around_the_lane(installation, old)


def _pruned(installation: AuditedInstallation) -> Any:
    return json.loads(run(installation, "topology", "prune", "--yes", "--json"))


def _around_the_lane(installation: AuditedInstallation, old: Router) -> None:
    """The router with the old topology is told that the tier is missing, and uses the shared ladder."""
    queue = f"gold.around.{len(old.logged('sent through the ladder'))}"
    retry = schedule(installation, queue)
    assert tier_of(installation, retry) == "retry.ladder.1.1s"
    arrived(installation, queue)

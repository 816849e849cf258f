"""A delay that is longer than the ladder holds: several legs, one round, one return, never early.

The ladder has two levels. Its step is 40 ms, so a leg takes 2.5 s, and a message waits for 6.4 s;
TARRY_LAYOVER_STEP_MS=125 makes that 8 s and 20 s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pika
import pytest

from tests.acceptance.audited import AuditedInstallation, shared_audited
from tests.support.cli import WIDE, run_cli
from tests.support.router import Router, routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

STEP = int(os.environ.get("TARRY_LAYOVER_STEP_MS", "40"))
LADDER = 63 * STEP
"""Milliseconds: the longest delay that the ladder holds."""
WAIT = 160 * STEP
"""Two and a half times as long: three legs."""
POLICIES = f"""
[ladder]
granularity = "{STEP}ms"
levels = 2

[[policy]]
name = "default"
schedule = ["100ms"]
max_retries = 3
"""
LEGS = "select (detail ->> 'leg')::int from transition where state = 'layover' and retry_id = %s order by id"
DIVERTED = "select count(*) from diversion where retry_id = %s and diverted_at is not null"


@dataclass
class Service:
    """One router at a time, which tests kill and start again."""

    start: Callable[..., Router]
    router: Router | None = None

    def running(self) -> Router:
        if self.router is None or not self.router.running:
            self.router = self.start().wait_ready()
        return self.router

    def kill(self) -> None:
        if self.router is not None:
            self.router.kill()


@pytest.fixture(scope="module")
def installation(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AuditedInstallation]:
    """Shared by the tests of this file; each has a queue of its own."""
    with shared_audited(broker, services, tmp_path_factory.mktemp("layover") / "topology", POLICIES) as made:
        yield made


@pytest.fixture(scope="module")
def service(installation: AuditedInstallation) -> Iterator[Service]:
    with routers(installation) as start:
        yield Service(start)


def schedule(installation: AuditedInstallation, queue: str, wait_ms: int = WAIT, **headers: Any) -> str:
    """Requests a retry of a message that is named as its queue, and returns the retry id once it waits."""
    installation.declare(queue)
    installation.request(queue, queue, error_class="rate_limited", retry_after_ms=wait_ms, **headers)
    retry = installation.retry_of(queue)
    wait_for(lambda: installation.states(queue) == [(retry, "scheduled")], what=f"{queue} to be scheduled")
    if wait_ms > LADDER:
        wait_leg(installation, retry, 1)
    return retry


def wait_leg(installation: AuditedInstallation, retry: str, leg: int) -> None:
    wait_for(lambda: leg in legs(installation, retry), deadline=60, what=f"leg {leg} to be recorded")


def legs(installation: AuditedInstallation, retry: str) -> list[int]:
    return [leg for (leg,) in installation.rows(LEGS, retry)]


def arrived(installation: AuditedInstallation, queue: str) -> pika.BasicProperties:
    """The message, which must be the only one, once the audit has recorded its return: in time, in one round."""
    properties, body = installation.wait_message(queue, deadline=60)
    now = time.time_ns() // 1_000_000
    own: Any = properties.headers or {}
    assert (properties.message_id, body) == (queue, b"payload")
    assert now >= own["tarry-due-ms"], "early"
    assert "tarry-layover" not in own
    wait_for(lambda: installation.states(queue)[0][1] == "returned", what=f"the return of {queue}")
    # A duplicate with a detail is a second return; one without is a request that a killed router had not acknowledged.
    found = installation.rows(
        "select transition.state, transition.round, count(*) from transition join retry on retry.id = retry_id"
        " where message_id = %s and (transition.state in ('scheduled', 'returned', 'unroutable')"
        " or transition.state = 'duplicate' and transition.detail is not null)"
        " group by 1, 2",
        queue,
    )
    assert sorted(found) == [("returned", 1, 1), ("scheduled", 1, 1)]
    assert installation.get(queue) is None, "a second copy"
    return properties


def verified(installation: AuditedInstallation) -> None:
    """The audit is balanced now. What is overdue by half a second counts as missing, unless the broker has it."""
    quick = ("--grace", "500ms", "--settle", "300ms", "--patience", "5s")
    code, answer = installation.audit("verify", *quick)
    assert (code, answer["missing"], answer["shortages"]) == (0, [], []), answer


def _forget_requests(installation: AuditedInstallation) -> None:
    """What the killed router had recorded, and not acknowledged: after the due time it would begin a round."""
    installation.channel.queue_purge("retry.scheduled")


def wait_diverted(installation: AuditedInstallation, retry: str) -> None:
    wait_for(lambda: installation.number(DIVERTED, retry) == 1, deadline=60, what="the message to be diverted")


def run(installation: AuditedInstallation, *arguments: str) -> str:
    done = run_cli(arguments, installation.environment | WIDE)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_long_wait_returns_once_in_one_audited_round(installation: AuditedInstallation, service: Service) -> None:
    router, before = service.running(), time.monotonic()
    retry = schedule(installation, "long", trace="x" * 50)
    for leg in (1, 2, 3):
        wait_leg(installation, retry, leg)
        time.sleep(0.35)  # until the message must be in the first queue of the leg
        verified(installation)
    properties = arrived(installation, "long")
    assert time.monotonic() - before >= WAIT / 1000
    own: Any = properties.headers
    assert (own["trace"], own["tarry-count"], own["tarry-round"]) == ("x" * 50, 0, 1)
    assert legs(installation, retry) == [1, 2, 3]
    assert router.metric("tarry_layovers_total", outcome="sent") == 2
    verified(installation)
    assert "leg 3: " in run(installation, "history", retry)


def test_a_cancel_ends_it_at_the_end_of_its_leg(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    retry = schedule(installation, "cancelled", 4 * WAIT)
    other = schedule(installation, "cancelled.later", 4 * WAIT)
    run(installation, "cancel", retry, "--reason", "not needed")
    now = legs(installation, retry)
    wait_diverted(installation, retry)
    assert installation.states("cancelled") == [(retry, "cancelled")]
    assert legs(installation, retry) in (now, [*now, len(now) + 1]), "the next leg may have been on its way"
    wait_leg(installation, other, 2)
    run(installation, "cancel", other)
    wait_diverted(installation, other)
    assert (installation.get("cancelled"), installation.get("cancelled.later")) == (None, None)
    verified(installation)


def test_a_retry_now_sends_it_once(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    retry = schedule(installation, "now", 4 * WAIT)
    run(installation, "retry-now", retry)
    properties, body = installation.wait_message("now")
    own: Any = properties.headers
    assert (body, own["tarry-round"], "tarry-layover" in own) == (b"payload", 2, False)
    wait_diverted(installation, retry)
    wait_for(lambda: installation.states("now") == [(retry, "returned")], what="its return")
    assert installation.get("now") is None
    verified(installation)


def test_a_pause_at_the_due_time_holds_it(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    retry = schedule(installation, "paused")
    run(installation, "pause", "paused")
    wait_for(lambda: installation.states("paused") == [(retry, "held")], deadline=60, what="it to be held")
    assert installation.depth("paused") == 0
    verified(installation)
    run(installation, "resume", "paused")
    arrived(installation, "paused")


def test_a_redrive_with_a_long_delay_takes_legs_too(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    queue = installation.declare("redriven")
    installation.request(queue, queue, error_class="final")
    wait_for(lambda: [state for _, state in installation.states(queue)] == ["in_review"], what="it to be in review")
    run(installation, "review", "redrive", "--queue", queue, "--delay", f"{80 * STEP}ms", "--yes")
    retry = installation.retry_of(queue)
    properties, body = installation.wait_message(queue, deadline=60)
    own: Any = properties.headers
    assert (body, "tarry-layover" in own) == (b"payload", False)
    assert time.time_ns() // 1_000_000 >= own["tarry-due-ms"]
    assert legs(installation, retry) == [1, 2]
    verified(installation)


def test_a_router_killed_between_two_legs_makes_no_second_copy(
    installation: AuditedInstallation, service: Service
) -> None:
    """And a leg that is delivered again, as after a crash between publish and acknowledgement, is dropped."""
    service.running()
    retries = [schedule(installation, queue) for queue in ("killed", "again")]
    service.kill()
    wait_for(lambda: installation.depth("retry.layover") == 2, deadline=60, what="the end of the first leg")
    _forget_requests(installation)
    verified(installation)
    with installation.open_channel() as channel:
        taken = [channel.basic_get("retry.layover") for _ in retries]
        channel.basic_nack(multiple=True, requeue=True)
        router = service.running()
        for retry in retries:
            wait_leg(installation, retry, 2)
        [(properties, body)] = [(about, body) for _, about, body in taken if about and about.message_id == "again"]
        channel.basic_publish("", "retry.layover", body or b"", properties)
    verified(installation)
    wait_for(lambda: router.metric("tarry_layovers_total", outcome="duplicate") == 1, what="the copy to be dropped")
    for queue in ("killed", "again"):
        arrived(installation, queue)


def test_a_message_lost_between_two_legs_is_named_and_recovered(
    installation: AuditedInstallation, service: Service
) -> None:
    service.running()
    retry = schedule(installation, "lost", 2 * WAIT)
    service.kill()
    wait_for(lambda: installation.depth("retry.layover") == 1, deadline=60, what="the end of the first leg")
    _forget_requests(installation)
    assert installation.take("retry.layover") == "lost"
    quick = ("--grace", "500ms", "--settle", "300ms", "--patience", "0s")

    def missing() -> bool:
        _, answer = installation.audit("verify", *quick)
        return [one["message_id"] for one in answer["missing"]] == ["lost"]

    installation.wait_checking(missing, "the audit to miss it before it is due")
    code, done = installation.audit("recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 1)
    assert legs(installation, retry)[:2] == [1, 2]
    service.running()
    arrived(installation, "lost")


def test_an_installation_without_the_queue_runs_and_makes_nothing_early(
    installation: AuditedInstallation, service: Service
) -> None:
    """One of an earlier version, to which the topology was not applied again."""
    service.kill()
    installation.channel.queue_delete("retry.layover")
    try:
        router = service.running()
        assert "tarry topology apply" in router.wait_logged("the layover queue cannot be read")["do"]
        assert router.logged("topology warning")
        schedule(installation, "without")
        properties, _ = installation.wait_message("without", deadline=60)
        own: Any = properties.headers
        assert time.time_ns() // 1_000_000 >= own["tarry-due-ms"]
        assert "tarry-layover" not in own
        wait_for(lambda: installation.states("without")[0][1] == "returned", what="its return")
    finally:
        installation.apply()

"""`at = "due"`: a message is asked about when it is due, before it returns, by the service or by any consumer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pika
import pytest

from tarry.topology.apply import declare
from tarry.topology.blueprint import former_first_gate
from tarry.topology.objects import Blueprint
from tests.acceptance.audited import AuditedInstallation, shared_audited
from tests.support.cli import WIDE, run_cli
from tests.support.eligibility import Endpoint, eligibility_endpoint
from tests.support.router import Router, routers, spawn_router
from tests.support.services import Services
from tests.support.spaces import (
    Database,
    SharedBroker,
    Vhost,
)
from tests.support.waiting import wait_for

POLICIES = """
[ladder]
levels = 4

[[policy]]
name = "due"
match = { queue = "due.*" }
schedule = ["200ms"]
max_retries = 3
eligibility = { url = "URL", key = "device_id", timeout = "30s", at = "due", cache = "0s", answer_within = "1m" }

[[policy]]
name = "both"
match = { queue = "both.*" }
schedule = ["2s"]
max_retries = 3
[policy.eligibility]
url = "URL"
key = "device_id"
timeout = "30s"
at = ["schedule", "due"]
cache = "0s"
answer_within = "1m"

[[policy]]
name = "later"
extends = "both"
match = { queue = "later.*" }
schedule = ["10m"]

[[policy]]
name = "consumer.decides"
match = { queue = "consumer.*" }
schedule = ["200ms"]
max_retries = 3
eligibility = { at = "due", answer_within = "1m" }

[[policy]]
name = "unattended"
match = { queue = "unattended.*" }
schedule = ["200ms"]
max_retries = 3
eligibility = { at = "due", answer_within = "700ms" }
"""
CHECKS = "retry.check.1m.consumer.decides"
STEPS = (
    "select transition.state, reason from transition join retry on retry.id = retry_id"
    " where message_id = %s order by transition.id"
)
QUICK = ("--grace", "500ms", "--settle", "300ms", "--patience", "0s")


@dataclass
class Service:
    """One router at a time, which tests kill and start again, and the endpoint that it asks."""

    endpoint: Endpoint
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
def endpoint() -> Iterator[Endpoint]:
    with eligibility_endpoint() as made:
        yield made


@pytest.fixture(scope="module")
def installation(
    endpoint: Endpoint, broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AuditedInstallation]:
    """Shared by the tests of this file; each has a queue of its own."""
    policies = POLICIES.replace("URL", endpoint.url)
    with shared_audited(broker, services, tmp_path_factory.mktemp("due") / "topology", policies) as made:
        yield made


@pytest.fixture(scope="module")
def service(endpoint: Endpoint, installation: AuditedInstallation) -> Iterator[Service]:
    with routers(installation) as start:
        yield Service(endpoint, start)


@pytest.fixture(autouse=True)
def well(endpoint: Endpoint) -> Iterator[None]:
    """Each test begins with an endpoint that answers."""
    yield
    endpoint.status = 200
    endpoint.inactive.clear()


def request(installation: AuditedInstallation, queue: str, *devices: str) -> None:
    """A message for each device has failed; its id is that of the device."""
    installation.declare(queue)
    for device in devices:
        installation.request(queue, device, device_id=device)


def wait_state(installation: AuditedInstallation, state: str, *devices: str) -> None:
    def ended() -> bool:
        return all([one for _, one in installation.states(device)] == [state] for device in devices)

    wait_for(ended, deadline=60, what=f"{', '.join(devices)} to be {state}")


def steps(installation: AuditedInstallation, device: str) -> list[str]:
    """The history of its retry, without claims."""
    return [state for state, _ in installation.rows(STEPS, device) if state != "claimed"]


def reason(installation: AuditedInstallation, device: str) -> str:
    return next(str(reason) for state, reason in installation.rows(STEPS, device) if state == "skipped")


def verified(installation: AuditedInstallation, *missing: str) -> dict[str, Any]:
    """The audit misses these messages, which are overdue by half a second, and no others."""
    found: dict[str, Any] = {}

    def as_expected() -> bool:
        _, answer = installation.audit("verify", *QUICK)
        found.update(answer)
        return sorted(one["message_id"] for one in answer["missing"]) == sorted(missing) and not answer["shortages"]

    installation.wait_checking(as_expected, f"the audit to miss {missing or 'nothing'}")
    return found


def run(installation: AuditedInstallation, *arguments: str) -> str:
    done = run_cli(arguments, installation.environment | WIDE)
    assert done.exit_code == 0, done.output
    return done.stdout


@dataclass(frozen=True)
class Checked:
    """A message of the check queue, as its consumer gets it."""

    tag: int
    properties: pika.BasicProperties
    body: bytes

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


def take_check(installation: AuditedInstallation) -> Checked:
    def found() -> Checked | None:
        method, properties, body = installation.channel.basic_get(CHECKS)
        if method is None or properties is None or body is None:
            return None
        return Checked(method.delivery_tag or 0, properties, body)

    taken = wait_for(found, deadline=60, what="a message in the check queue")
    assert taken is not None
    return taken


def skip(installation: AuditedInstallation, checked: Checked, why: str) -> None:
    """As docs/contract.md says."""
    row = {
        "id": checked.headers["tarry-id"],
        "round": checked.headers["tarry-round"],
        "outcome": "skipped",
        "reason": why,
    }
    about = pika.BasicProperties(content_type="application/vnd.tarry.outcomes+json", delivery_mode=2)
    installation.channel.basic_publish("retry.reports", "", json.dumps({"outcomes": [row]}), about, mandatory=True)
    installation.channel.basic_ack(checked.tag)


def test_the_service_skips_what_is_not_wanted_when_it_is_due(
    installation: AuditedInstallation, service: Service
) -> None:
    router = service.running()
    devices = [f"s{number}" for number in range(40)]
    inactive = set(devices[::10])
    service.endpoint.inactive |= inactive
    request(installation, "due.push", *devices)
    wait_state(installation, "skipped", *inactive)
    wait_state(installation, "returned", *(set(devices) - inactive))
    assert set(installation.take_ids("due.push", 36)) == set(devices) - inactive
    assert installation.get("due.push") is None
    assert steps(installation, "s10") == ["scheduled", "skipped"]
    assert steps(installation, "s11") == ["scheduled", "returned"]
    assert reason(installation, "s10") == "device s10 is inactive"
    assert router.metric("retries_skipped_total", queue="due.push") == 4
    assert router.metric("tarry_checked_total", policy="due", outcome="skipped") == 4
    assert len(router.logged("skipped")) == 4
    balance = verified(installation)["balance"]
    assert (balance["skipped"], balance["returned"], balance["in_review"], balance["waiting"]) == (4, 36, 0, 0)


def test_what_changes_during_the_delay_is_noticed(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    request(installation, "both.push", "changes", "stays")
    wait_state(installation, "scheduled", "changes", "stays")
    assert {"changes", "stays"} <= set(service.endpoint.values)
    service.endpoint.inactive.add("changes")
    wait_state(installation, "skipped", "changes")
    wait_state(installation, "returned", "stays")
    assert steps(installation, "changes") == ["scheduled", "skipped"]
    assert installation.take_ids("both.push", 1) == ["stays"]
    assert installation.get("both.push") is None


def test_an_endpoint_that_is_down_lets_them_return(installation: AuditedInstallation, service: Service) -> None:
    router = service.running()
    service.endpoint.status = 503
    request(installation, "due.down", "down")
    wait_state(installation, "returned", "down")
    assert "policy due does not answer" in str(router.ready())
    assert installation.take_ids("due.down", 1) == ["down"]


def test_a_consumer_of_the_check_queue_decides(installation: AuditedInstallation, service: Service) -> None:
    """Until then the audit knows that it is on the broker."""
    service.running()
    request(installation, "consumer.a", "refused")
    first = take_check(installation)
    assert (first.body, first.headers["device_id"], first.headers["tarry-queue"]) == (
        b"payload",
        "refused",
        "consumer.a",
    )
    time.sleep(1)  # until it is overdue
    verified(installation)
    installation.channel.basic_nack(first.tag, requeue=False)
    properties, body = installation.wait_message("consumer.a")
    own: Any = properties.headers
    assert (body, properties.message_id, "BCC" in own) == (b"payload", "refused", False)
    wait_state(installation, "returned", "refused")
    request(installation, "consumer.a", "unwanted")
    skip(installation, take_check(installation), "the account is closed")
    wait_state(installation, "skipped", "unwanted")
    assert reason(installation, "unwanted") == "the account is closed"
    assert installation.get("consumer.a") is None
    verified(installation)


def test_an_ack_without_a_report_is_missing_and_recovered(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    request(installation, "consumer.lost", "lost")
    installation.channel.basic_ack(take_check(installation).tag)
    verified(installation, "lost")
    code, done = installation.audit("recover", "--yes", *QUICK)
    assert (code, done["sent"]) == (0, 1)
    installation.channel.basic_nack(take_check(installation).tag, requeue=False)
    assert installation.take_ids("consumer.lost", 1) == ["lost"]
    wait_state(installation, "returned", "lost")
    assert steps(installation, "lost")[-1] == "returned"
    verified(installation)


def test_without_a_consumer_it_returns_when_its_time_is_over(
    installation: AuditedInstallation, service: Service
) -> None:
    service.running()
    request(installation, "unattended.a", "alone")
    properties, _ = installation.wait_message("unattended.a", deadline=60)
    own: Any = properties.headers
    assert time.time_ns() // 1_000_000 >= own["tarry-due-ms"] + 700
    wait_state(installation, "returned", "alone")
    verified(installation)


def test_a_paused_policy_holds_what_was_allowed(installation: AuditedInstallation, service: Service) -> None:
    """The check comes before the pauses of policies, and is not repeated. A message that is not wanted is skipped."""
    service.running()
    request(installation, "consumer.paused", "first")
    installation.channel.basic_nack(take_check(installation).tag, requeue=False)
    assert installation.take_ids("consumer.paused", 1) == ["first"]
    run(installation, "pause", "--policy", "consumer.decides")
    request(installation, "consumer.paused", "held", "unwanted.held")
    taken = {str(one.properties.message_id): one for one in (take_check(installation), take_check(installation))}
    wait_state(installation, "held", "held", "unwanted.held")
    verified(installation)
    installation.channel.basic_nack(taken["held"].tag, requeue=False)
    wait_for(lambda: installation.depth("retry.held~policy:consumer%2Edecides") == 1, what="it to be held")
    skip(installation, taken["unwanted.held"], "closed")
    wait_state(installation, "skipped", "unwanted.held")
    assert installation.depth("consumer.paused") == 0
    verified(installation)
    run(installation, "resume", "--policy", "consumer.decides")
    assert installation.take_ids("consumer.paused", 1) == ["held"]
    wait_state(installation, "returned", "held")


def test_a_paused_destination_is_asked_about_after_its_release(
    installation: AuditedInstallation, service: Service
) -> None:
    service.running()
    request(installation, "due.paused", "sooner")
    wait_state(installation, "returned", "sooner")
    assert installation.take_ids("due.paused", 1) == ["sooner"]
    run(installation, "pause", "due.paused")
    request(installation, "due.paused", "later", "later.gone")
    wait_state(installation, "held", "later", "later.gone")
    assert not {"later", "later.gone"} & set(service.endpoint.values)
    service.endpoint.inactive.add("later.gone")
    run(installation, "resume", "due.paused")
    wait_state(installation, "skipped", "later.gone")
    assert installation.take_ids("due.paused", 1) == ["later"]
    wait_state(installation, "returned", "later")


def test_a_canary_that_is_skipped_is_followed_by_another(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    request(installation, "due.canary", "before")
    wait_state(installation, "returned", "before")
    run(installation, "pause", "due.canary")
    devices = ["c1", "c2", "c3"]
    request(installation, "due.canary", *devices)
    wait_state(installation, "held", *devices)
    service.endpoint.inactive |= set(devices)
    run(installation, "resume", "due.canary", "--canary")
    wait_state(installation, "skipped", *devices)
    over = "select count(*) from paused_destination where state <> 'over'"
    wait_for(lambda: installation.number(over) == 0, deadline=60, what="the release to end")
    assert installation.take_ids("due.canary", 1) == ["before"]
    assert installation.get("due.canary") is None


def test_a_retry_now_is_not_asked_about(installation: AuditedInstallation, service: Service) -> None:
    service.running()
    service.endpoint.inactive.add("now")
    request(installation, "later.now", "other")
    wait_state(installation, "scheduled", "other")
    run(installation, "retry-now", installation.retry_of("other"))
    assert installation.take_ids("later.now", 1) == ["other"]
    assert service.endpoint.values.count("other") == 1


def test_a_service_killed_between_report_and_ack_skips_once(
    installation: AuditedInstallation, service: Service
) -> None:
    service.kill()
    service.endpoint.inactive.add("dying")
    asked = len(service.endpoint.asked)
    dying = spawn_router(
        [sys.executable, "-m", "tests.acceptance.dying_checker", "serve"],
        installation.environment,
        installation.folder / "dying.log",
    )
    request(installation, "due.dying", "dying")
    dying.process.wait(120)
    assert dying.process.returncode == -9
    service.running()
    wait_for(lambda: len(service.endpoint.asked) >= asked + 2, deadline=60, what="it to be asked about again")
    wait_for(lambda: installation.depth("retry.check.1m.due") == 0, what="the second skip")
    wait_state(installation, "skipped", "dying")
    verified(installation)
    assert steps(installation, "dying") == ["scheduled", "skipped"]
    assert installation.get("due.dying") is None


def test_an_installation_without_the_gate_returns_them_unasked(
    vhost: Vhost, database: Database, endpoint: Endpoint, tmp_path: Any
) -> None:
    """One of an earlier version, to which the topology was not applied again. Afterwards they are asked about."""
    policies = POLICIES.replace("URL", endpoint.url)
    made = AuditedInstallation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", policies)
    made.apply()
    for queue in ("retry.check.1m.due", "retry.check.1m.both", CHECKS, "retry.check.700ms.unattended"):
        made.channel.queue_delete(queue)
    declare(made.channel, Blueprint((), (), (former_first_gate(made.topology.broker_names),)))
    made.channel.exchange_delete("retry.gate.check")
    endpoint.inactive |= {"early", "then"}
    with routers(made) as start:
        router = start().wait_ready()
        assert "tarry topology apply" in router.wait_logged("the check queue cannot be read", 60)["do"]
        request(made, "due.old", "early")
        wait_state(made, "returned", "early")
        router.kill()
        made.apply()
        start().wait_ready()
        request(made, "due.old", "then")
        wait_state(made, "skipped", "then")
        assert made.take_ids("due.old", 1) == ["early"]
        assert made.get("due.old") is None
    made.close()

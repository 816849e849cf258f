"""Every number means what its name says: due, requeued and dead (S1), success and failed (S0), manual retries (S4); and
the lines of the log about successes (S2) and manual actions. One service; each test has its own queues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.integration.operations.terminal import Terminal
from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

LONG_ENOUGH_MS = 8_000
"""To act on a waiting retry before it is due, on a busy machine too."""


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    with api_installation(
        broker, services, tmp_path_factory.mktemp("metrics"), TARRY_LOOK_EVERY="500ms", **TOKENS
    ) as made:
        yield made


@pytest.fixture
def terminal(api: ApiInstallation) -> Terminal:
    """A process without metrics of its own."""
    return Terminal(api, remote=False)


def total(api: ApiInstallation, name: str, queue: str) -> float:
    return api.router.metric(f"tarry_{name}_total", queue=queue)


def manual(api: ApiInstallation) -> float:
    return api.router.metric("tarry_retries_total", kind="manual")


def requeued(api: ApiInstallation, queue: str, number: int = 1) -> None:
    wait_for(lambda: total(api, "requeued", queue) == number, deadline=60, what=f"{number} requeued to {queue}")


def test_metrics_count_a_retry_now_as_one_manual_retry(api: ApiInstallation, terminal: Terminal) -> None:
    retry = api.schedule("slow.now", "now")
    before, automatic = manual(api), api.router.metric("tarry_retries_total", kind="automatic")
    assert terminal.run("retry-now", retry, "--reason", "urgent", "--requested-by", "ann").exit_code == 0
    wait_for(lambda: manual(api) == before + 1, what="the manual retry")
    requeued(api, "slow.now")
    assert manual(api) == before + 1
    assert api.router.metric("tarry_retries_total", kind="automatic") == automatic
    assert total(api, "due", "slow.now") == 1


def test_metrics_count_a_cancelled_retry_as_due_and_not_requeued(api: ApiInstallation, terminal: Terminal) -> None:
    queue = "quick.cancelled"
    for message in ("stays", "cancelled"):
        api.schedule(queue, message, retry_after_ms=LONG_ENOUGH_MS)
    assert total(api, "due", queue) == 0
    assert terminal.run("cancel", "cancelled").exit_code == 0
    wait_for(lambda: total(api, "due", queue) == 2, what="both to come due")
    requeued(api, queue)
    assert (total(api, "due", queue), total(api, "cancelled", queue), total(api, "dead", queue)) == (2, 1, 0)


def test_metrics_count_a_held_retry_as_due_and_its_release_as_manual(api: ApiInstallation, terminal: Terminal) -> None:
    queue = "quick.held"
    api.schedule(queue, f"known-{queue}", retry_after_ms=300_000)
    assert terminal.run("pause", queue).exit_code == 0
    api.installation.request(queue, "held")
    wait_for(lambda: total(api, "due", queue) == 1, what="the held retry to be due")
    wait_for(lambda: api.router.metric("tarry_due_now") >= 1, what="it to be due now")
    before = manual(api)
    assert (total(api, "requeued", queue), api.router.metric("retries_executed_total", queue=queue)) == (0, 0)
    assert terminal.run("resume", queue).exit_code == 0
    requeued(api, queue)
    assert (total(api, "due", queue), manual(api)) == (1, before + 1)


def test_metrics_count_no_manual_retry_when_a_pause_expires(api: ApiInstallation, terminal: Terminal) -> None:
    queue = "quick.expires"
    api.schedule(queue, f"known-{queue}", retry_after_ms=300_000)
    before = manual(api)
    assert terminal.run("pause", queue, "--for", "4s").exit_code == 0
    api.installation.request(queue, "expires")
    requeued(api, queue)
    states = [step["state"] for step in api.get(f"/retries/{api.installation.retry_of('expires')}")["steps"]]
    assert "returned" in states
    assert (total(api, "due", queue), manual(api)) == (1, before)


def test_metrics_count_an_unroutable_retry_as_due_and_not_requeued(api: ApiInstallation) -> None:
    lost, other = "quick.deleted", "quick.exists"
    api.schedule(lost, "unroutable", retry_after_ms=LONG_ENOUGH_MS)
    api.installation.channel.queue_delete(lost)
    wait_for(lambda: total(api, "due", lost) == 1, what="it to be due")
    wait_for(lambda: api.router.metric("retries_executed_total", queue=lost, status="unroutable") == 1)
    api.schedule(other, "routable", retry_after_ms=1_000)
    requeued(api, other)
    assert (total(api, "due", lost), total(api, "requeued", lost)) == (1, 0)


def test_metrics_count_a_redriven_message_as_one_manual_retry(api: ApiInstallation, terminal: Terminal) -> None:
    queue = api.installation.declare("slow.redriven")
    api.installation.request(queue, "final", error_class="final")
    retry = api.installation.retry_of("final")
    api.wait_state(retry, "in_review")
    before = manual(api)
    assert (total(api, "dead", queue), total(api, "due", queue)) == (1, 0)
    assert terminal.run("review", "redrive", retry).exit_code == 0
    wait_for(lambda: manual(api) == before + 1, what="the manual retry")
    requeued(api, queue)
    assert (total(api, "dead", queue), total(api, "due", queue), manual(api)) == (1, 1, before + 1)


def _returned(api: ApiInstallation, queue: str) -> dict[str, Any]:
    return dict(api.installation.wait_message(queue)[0].headers or {})


def _report(api: ApiInstallation, headers: dict[str, Any]) -> None:
    outcome = {"id": headers["tarry-id"], "round": headers["tarry-round"], "retry_count": headers["tarry-count"]}
    body = json.dumps({"outcomes": [outcome | {"at_ms": headers["tarry-due-ms"] + 500}]})
    api.installation.channel.basic_publish("retry.reports", "", body.encode(), pika.BasicProperties(delivery_mode=2))


def test_metrics_count_failed_and_successful_retries_by_attempt(api: ApiInstallation) -> None:
    queue, metric = api.installation.declare("quick.outcomes"), api.router.metric
    api.installation.request(queue, "outcomes")
    first = _returned(api, queue)
    own = {name: value for name, value in first.items() if name.startswith("tarry-")}
    api.installation.request(queue, "outcomes", **own)
    second = _returned(api, queue)
    for _ in range(2):
        _report(api, second)
    wait_for(lambda: metric("retries_executed_total", queue=queue, status="success") == 1, what="the success")
    assert metric("retries_executed_total", queue=queue, status="failed") == 1
    assert metric("tarry_outcomes_by_attempt_total", attempt="1", outcome="failed") == 1
    assert metric("tarry_outcomes_by_attempt_total", attempt="2", outcome="success") == 1
    line = api.router.wait_logged("retry succeeded")
    assert (line["message_id"], line["attempt"], line["queue"]) == ("outcomes", 2, queue)
    elapsed = second["tarry-due-ms"] + 500 - second["tarry-since-ms"]
    assert line["since_first_failure_ms"] == pytest.approx(elapsed, abs=1_000)
    found = api.get("/audit/attempts", params={"queue": queue})
    assert found == [
        {"attempt": 1, "returned": 1, "success": 0, "presumed": 0, "failed": 1, "success_rate": 0.0},
        {"attempt": 2, "returned": 1, "success": 1, "presumed": 0, "failed": 0, "success_rate": 100.0},
    ]
    assert api.get("/audit/attempts", params={"queue": "elsewhere"}) == []
    for through_the_api in (False, True):
        terminal = Terminal(api, through_the_api)
        assert terminal.json("audit", "attempts", "--queue", queue) == found
        assert "100 %" in terminal.run("audit", "attempts", "--within", "1h", "--queue", queue).stdout
        assert "nothing returned" in terminal.run("audit", "attempts", "--queue", "elsewhere").stdout


def test_log_names_each_manual_action_once_with_who_and_why(api: ApiInstallation, terminal: Terminal) -> None:
    retry = api.schedule("slow.logged", "logged")
    cancelled = terminal.run("cancel", retry, "--reason", "not wanted", "--requested-by", "ann")
    assert cancelled.exit_code == 0
    assert terminal.run("cancel", retry, "--reason", "again", "--requested-by", "bob").exit_code == 6

    def lines() -> list[dict[str, Any]]:
        return [line for line in api.router.logged("operator action") if line["target"] == retry]

    wait_for(lambda: len(lines()) == 2, what="a line for each action")
    done, refused = lines()
    assert (done["actor"], done["kind"], done["reason"]) == ("ann", "cancel", "not wanted")
    assert done["outcome"]["answer"] == "cancelled"
    assert (refused["actor"], refused["reason"]) == ("bob", "again")
    assert "nothing is waiting" in refused["outcome"]["error"]
    assert api.rows("select count(*) from action where logged_at is null and finished_at is not null") == [(0,)]

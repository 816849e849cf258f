from __future__ import annotations

import json

import pytest

from tarry.topology.load import load, shipped
from tests.integration.topology.installation import TopologyInstallation, command, drained
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for


@pytest.fixture
def installation(vhost: Vhost) -> TopologyInstallation:
    """The shipped topology: it is what `tarry topology verify` finds without being told where to look."""
    return TopologyInstallation(vhost, load(shipped())).apply()


def findings(installation: TopologyInstallation) -> list[str]:
    """What verify says, having made sure that it fails."""
    answer = command(installation, "verify", "--json")
    assert answer.exit_code == 1
    found = json.loads(answer.stdout)["findings"]
    return [f"{', '.join(finding['things'])}: {finding['problem']}" for finding in found]


def policy(vhost: Vhost, kind: str, pattern: str, apply_to: str = "queues", **definition: object) -> None:
    body = {"pattern": pattern, "apply-to": apply_to, "priority": 1}
    body["definition"] = {key.replace("_", "-"): value for key, value in definition.items()}
    vhost.api(f"{kind}/{{vhost}}/limits", method="PUT", body=body)


def test_a_queue_deleted_a_binding_removed_and_an_argument_changed_by_hand(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        opened.queue_delete("retry.delay.8s")
        opened.queue_unbind("retry.ladder.0.125ms", "retry.ladder.0", "~0:1")
        opened.queue_delete("retry.delay.4s")
        opened.queue_declare("retry.delay.4s", durable=True, arguments={"x-queue-type": "quorum"})
        opened.exchange_delete("retry.gate.held")
        opened.exchange_declare("retry.gate.held", "direct", durable=True)

    found = findings(installation)

    assert "queue retry.delay.8s: is missing" in found
    assert "binding retry.ladder.0 ─~0:1▶ queue retry.ladder.0.125ms: is missing" in found
    assert any(line.startswith("queue retry.delay.4s: ") and "x-message-ttl is not set" in line for line in found)
    assert "exchange retry.gate.held: alternate-exchange is not set, should be retry.arrive" in found


def test_a_policy_that_overrides_a_ttl_which_would_make_messages_early(installation: TopologyInstallation) -> None:
    """It does: the second half is the broker itself saying so."""
    policy(installation.vhost, "policies", r"^retry\.delay\.8s$", message_ttl=300)

    (found,) = findings(installation)

    assert found.startswith("queue retry.delay.8s: policy 'limits'")
    assert "makes message-ttl 300 instead of 8000" in found
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        installation.schedule(opened, "orders", 8_000)
        assert len(drained(opened, "orders", 1, deadline=30)) == 1


def test_an_operator_policy_that_limits_the_tap(installation: TopologyInstallation) -> None:
    policy(installation.vhost, "operator-policies", "^retry.audit$", max_length=5)

    (found,) = findings(installation)

    assert found.startswith("queue retry.audit: operator policy 'limits' (pattern ^retry.audit$) makes max-length 5")


def test_a_policy_that_gives_an_exchange_an_alternate(installation: TopologyInstallation) -> None:
    policy(installation.vhost, "policies", r"^retry\.", apply_to="exchanges", alternate_exchange="amq.fanout")

    (found,) = findings(installation)

    assert "exchange retry.delay" in found
    assert "exchange retry.deliver" not in found  # its own argument beats the policy


def test_an_argument_beats_a_policy_and_is_no_finding(installation: TopologyInstallation) -> None:
    policy(
        installation.vhost, "policies", r"^retry\.(delay|ladder)\.", overflow="drop-head", message_ttl=90_000_000_000
    )

    assert "retry.delay" not in command(installation, "verify").stdout


def test_a_stranger_who_listens_to_the_tap(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        opened.queue_declare("spy", durable=True)
        opened.queue_bind("spy", "retry.arrive", "")

    assert findings(installation) == [
        "binding retry.arrive ─(all)▶ queue spy: was not created by tarry; it takes copies of messages in flight"
    ]


def test_each_line_ends_in_the_command_that_mends_it(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        opened.queue_delete("retry.delay.8s")

    answer = command(installation, "verify")

    assert answer.exit_code == 1
    assert answer.stdout.splitlines()[1] == "✗ queue retry.delay.8s: is missing → tarry topology apply"


def test_show_counts_what_waits(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        installation.schedule(opened, "orders", 60_000)

    def shown() -> bool:
        steps = json.loads(command(installation, "show", "--json").stdout)["steps"]
        queues = {queue["name"]: queue["messages"] for step in steps for queue in step["queues"]}
        return bool(queues["retry.delay.1m"] == 1)

    wait_for(shown, what="the broker's next count")
    assert "retry.delay.1m" in command(installation, "show").stdout

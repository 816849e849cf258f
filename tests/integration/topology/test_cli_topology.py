"""A delay changed in production, command by command, as docs/topology.md tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.topology.installation import TopologyInstallation, command
from tests.support.spaces import Vhost

POLICY = '[[policy]]\nname = "default"\nschedule = [{}]\nmax_retries = 2\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A topology with the delays 2 s and 7 s."""
    (tmp_path / "tarry.toml").write_text(POLICY.format('"2s", "7s"'), "utf-8")
    return tmp_path


def test_a_new_delay_is_applied_and_the_old_one_retired(vhost: Vhost, folder: Path) -> None:
    broker, at = TopologyInstallation(vhost), ("-t", str(folder))
    assert command(broker, "apply", *at).exit_code == 0
    (folder / "tarry.toml").write_text(POLICY.format('"2s", "10s"'), "utf-8")

    plan = command(broker, "plan", *at)
    assert plan.exit_code == 2
    assert "+ queue retry.delay.10s" in plan.stdout
    assert "- queue retry.delay.7s: left over, 0 messages" in plan.stdout
    applied = json.loads(command(broker, "apply", "--json", *at).stdout)
    assert applied["declared"] == 2

    assert "kept: still bound" in command(broker, "prune", *at).stdout
    assert "Nothing enters" in command(broker, "drain", "retry.delay.7s", "--no-wait", "--yes", *at).stdout
    assert json.loads(command(broker, "prune", "--json", "--yes", *at).stdout)["deleted"] == ["retry.delay.7s"]
    assert "There are no retired tiers" in command(broker, "prune", *at).stdout
    assert command(broker, "plan", *at).exit_code == 0


def test_drain_deletes_the_tier_when_it_is_empty(vhost: Vhost, folder: Path) -> None:
    broker, at = TopologyInstallation(vhost), ("-t", str(folder))
    command(broker, "apply", *at)

    refused = command(broker, "drain", "retry.delay.7s", "--yes", *at)
    (folder / "tarry.toml").write_text(POLICY.format('"2s"'), "utf-8")
    drained = command(broker, "drain", "retry.delay.7s", "-y", *at)

    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: retry.delay.7s is in use")
    assert "retry.delay.7s is empty and deleted." in drained.stdout
    assert command(broker, "plan", *at).exit_code == 0


def test_a_plan_shows_each_kind_of_difference_for_people_and_for_programs(vhost: Vhost, folder: Path) -> None:
    broker, at = TopologyInstallation(vhost), ("-t", str(folder))
    command(broker, "apply", *at)
    with broker.open_channel() as opened:
        opened.queue_delete("retry.delay.7s")
        wrong = {"x-queue-type": "quorum", "x-message-ttl": 5_000, "x-dead-letter-exchange": "retry.ladder.6"}
        opened.queue_declare("retry.delay.7s", durable=True, arguments=wrong)
        opened.queue_bind("retry.delay.7s", "retry.delay", "~in:2s")

    shown, data = command(broker, "plan", *at).stdout, json.loads(command(broker, "plan", "--json", *at).stdout)

    assert "~ queue retry.delay.7s: " in shown
    assert "x-message-ttl is 5000, should be 7000" in shown
    assert "! exchange retry.delay: key ~in:2s leads to retry.delay.7s" in shown
    assert data["different"][0]["details"]["x-message-ttl"] == {"live": 5_000, "wanted": 7_000}
    assert data["conflicts"][0]["live"]["destination"] == "retry.delay.7s"
    assert [binding["key"] for binding in data["missing"]["bindings"]] == ["~in:7s"]
    assert command(broker, "apply", *at).stderr.startswith("error: Nothing was changed")

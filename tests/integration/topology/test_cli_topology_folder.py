"""Every command names its folder, warns when another one was applied, and asks before it deletes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.topology.installation import TopologyInstallation, command
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for

POLICY = '[[policy]]\nname = "default"\nschedule = [{}]\nmax_retries = 2\n'


def folder_with(folder: Path, delays: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tarry.toml").write_text("[ladder]\nlevels = 3\n" + POLICY.format(delays), "utf-8")
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return folder_with(tmp_path / "mine", '"2s", "7s"')


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Does not have the delay of 7 s."""
    return folder_with(tmp_path / "other", '"2s"')


@pytest.fixture
def broker(vhost: Vhost, mine: Path) -> TopologyInstallation:
    """A vhost to which `mine` was applied by the command."""
    installation = TopologyInstallation(vhost)
    assert command(installation, "apply", "-t", str(mine)).exit_code == 0
    return installation


def queues(broker: TopologyInstallation) -> set[str]:
    return {about["name"] for about in broker.vhost.api("queues/{vhost}")}


def test_plan_apply_and_verify_name_the_folder_that_was_found(
    broker: TopologyInstallation, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine.parent)
    mine.rename(mine.parent / "topology")
    for name in ("plan", "apply", "verify"):
        shown = command(broker, name)
        assert shown.exit_code == 0
        assert shown.stdout.splitlines()[0].startswith(f"Topology: {mine.parent / 'topology'} (digest ")
        assert shown.stderr == ""


def test_plan_warns_when_another_folder_was_applied(broker: TopologyInstallation, mine: Path, other: Path) -> None:
    shown = command(broker, "plan", "-t", str(other))
    data = json.loads(command(broker, "plan", "--json", "-t", str(other)).stdout)

    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"warning: topology {other} (digest ")
    assert f"): is not the one applied here, which is {mine} on " in shown.stderr
    assert data["topology"]["folder"] == str(other)
    assert data["applied"]["folder"] == str(mine)
    assert data["applied"]["at"] is not None
    assert data["topology"]["digest"] != data["applied"]["digest"]
    assert [warning["check"] for warning in data["warnings"]] == ["applied"]


def test_plan_says_that_the_applied_folder_has_changed(broker: TopologyInstallation, mine: Path) -> None:
    folder_with(mine, '"2s", "9s"')

    assert "has changed since it was applied, " in command(broker, "plan", "-t", str(mine)).stderr
    assert "has changed since it was applied, " in command(broker, "apply", "-t", str(mine)).stderr
    assert command(broker, "plan", "-t", str(mine)).stderr == ""


def test_apply_warns_and_then_the_new_folder_is_the_one_applied(
    broker: TopologyInstallation, mine: Path, other: Path
) -> None:
    data = json.loads(command(broker, "apply", "--json", "-t", str(other)).stdout)

    assert [warning["check"] for warning in data["warnings"]] == ["applied"]
    assert data["applied"]["folder"] == str(other)
    assert command(broker, "verify", "-t", str(other)).stderr == ""
    assert "): is not the one applied here, which is" in command(broker, "verify", "-t", str(mine)).stdout


def test_plan_and_verify_warn_of_a_policy_that_never_applies(broker: TopologyInstallation, mine: Path) -> None:
    text = (mine / "tarry.toml").read_text("utf-8")
    late = POLICY.format('"2s"').replace('"default"', '"late"')
    (mine / "tarry.toml").write_text(text + late + POLICY.format('"0s"').replace('"default"', '"zero"'), "utf-8")

    planned, verified = (command(broker, name, "-t", str(mine)) for name in ("plan", "verify"))

    for shown in (planned.stderr, verified.stdout):
        assert f"policy late ({mine}/tarry.toml), policy zero ({mine}/tarry.toml): can never apply: " in shown
        assert f"policy zero ({mine}/tarry.toml): retries 1 to 2 wait 0 ms" in shown


def test_drain_refuses_where_nobody_can_be_asked(broker: TopologyInstallation, mine: Path, other: Path) -> None:
    refused = command(broker, "drain", "retry.delay.7s", "-t", str(other))

    assert refused.exit_code == 2
    error = refused.stderr.splitlines()[-1]
    assert error.startswith("error: This closes the entry of retry.delay.7s (0 messages)")
    assert f"Topology: {other} (digest " in error
    assert f"It is not the one applied here, which is {mine} on " in error
    assert error.endswith("There is no terminal for a confirmation: confirm with --yes.")
    assert len(broker.vhost.api("queues/{vhost}/retry.delay.7s/bindings")) == 2


def test_prune_refuses_where_nobody_can_be_asked(broker: TopologyInstallation, other: Path) -> None:
    with broker.open_channel() as opened:
        opened.queue_unbind("retry.delay.7s", "retry.delay", "~in:7s")

    refused = command(broker, "prune", "-t", str(other))

    assert refused.exit_code == 2
    assert "error: This deletes retry.delay.7s. Topology: " in refused.stderr
    assert "confirm with --yes" in refused.stderr
    assert "retry.delay.7s" in queues(broker)


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("n", 2), ("", 2)])
def test_prune_asks_on_a_terminal_and_does_what_is_answered(
    broker: TopologyInstallation, other: Path, typed: str, code: int
) -> None:
    with broker.open_channel() as opened:
        opened.queue_unbind("retry.delay.7s", "retry.delay", "~in:7s")

    shown, exit_code = on_a_terminal(broker, typed, "prune", "-t", str(other))

    assert "This deletes retry.delay.7s." in shown
    assert "It is not the one applied here, which is " in shown
    assert exit_code == code
    assert ("retry.delay.7s" in queues(broker)) is (code != 0)


def on_a_terminal(broker: TopologyInstallation, typed: str, *arguments: str) -> tuple[str, int]:
    """`tarry topology …` on a terminal of its own, where somebody types an answer to its question."""
    address = broker.address
    where = ("--url", address.url, "--management-url", address.management_with_login)
    ours, its = pty.openpty()
    program = [sys.executable, "-m", "tarry", "topology", *arguments, *where]
    with subprocess.Popen(program, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
        os.close(its)
        shown = bytearray()

        def asked() -> bool:
            shown.extend(os.read(ours, 4096))
            return b"[y/N]" in shown

        wait_for(asked, deadline=120, what="the question")
        os.write(ours, f"{typed}\n".encode())
        with contextlib.suppress(OSError):  # when the other end is closed
            while more := os.read(ours, 4096):
                shown.extend(more)
    os.close(ours)
    return shown.decode().replace("\r\n", ""), process.returncode

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tarry.embedded import installation, package
from tarry.embedded.machine import DistributionPackage
from tarry.embedded.package import Manager
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been run as root."""
    ran: list[str] = []

    def record(command: Sequence[str], *, stdin: str | None = None) -> str:
        ran.append(" ".join(command) + (f" <<< {stdin!r}" if stdin else ""))
        return ""

    monkeypatch.setattr(package, "run", record)
    monkeypatch.setattr(package, "run_plain", record)
    return ran


def test_a_policy_that_was_there_is_put_back(
    commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("mine")
    monkeypatch.setattr(package, "POLICY", policy)
    with package.services_stay_down():
        assert commands[0] == f"mv {policy} {policy}.before-tarry"
        assert commands[1].endswith("exit 101\\n'")
    assert commands[-1] == f"mv {policy}.before-tarry {policy}"


def test_a_policy_that_was_not_there_is_removed(
    commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "POLICY", tmp_path / "policy-rc.d")
    with pytest.raises(RuntimeError), package.services_stay_down():
        raise RuntimeError
    assert commands[-1] == f"rm -f {tmp_path}/policy-rc.d"


def test_stale_package_lists_are_fetched_and_it_is_tried_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def flaky(command: Sequence[str], *, stdin: str | None = None) -> str:
        ran.append(command[1] if command[0] == "apt-get" else command[0])
        if ran.count("install") == 1 and ran[-1] == "install":
            raise EmbeddedError("404")
        return stdin or ""

    monkeypatch.setattr(package, "run", flaky)
    monkeypatch.setattr(package, "POLICY", tmp_path / "policy-rc.d")
    package.install_debian_package("rabbitmq-server")
    assert ran == ["tee", "chmod", "install", "update", "install", "rm"]


def test_each_manager_has_its_command(commands: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(package, "POLICY", tmp_path / "policy-rc.d")
    for manager in package.MANAGERS:
        manager.install()
    assert "apt-get install -y --no-install-recommends rabbitmq-server" in commands
    assert "dnf install -y rabbitmq-server" in commands
    assert "brew install rabbitmq" in commands


@pytest.mark.parametrize(
    ("program", "said", "expected"),
    [
        ("apt-get", "rabbitmq-server:\n  Installed: (none)\n  Candidate: 3.10.8-1.1+deb12u1\n", "3.10.8"),
        ("apt-get", "rabbitmq-server:\n  Candidate: 1:3.12.1-1ubuntu1\n", "3.12.1"),
        ("apt-get", "rabbitmq-server:\n  Candidate: (none)\n", None),
        ("dnf", "3.13.7\n", "3.13.7"),
        ("brew", "==> rabbitmq: stable 4.2.1 (bottled)\n", "4.2.1"),
    ],
)
def test_the_version_on_offer_is_read(
    program: str, said: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "run_plain", lambda _: said)
    manager = next(manager for manager in package.MANAGERS if manager.program == program)
    assert manager.candidate() == expected


@pytest.mark.parametrize("candidate", [package.dnf_candidate, package.brew_candidate])
def test_a_manager_that_cannot_say_leaves_it_open(candidate: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sequence[str]) -> str:
        raise EmbeddedError("offline")

    monkeypatch.setattr(package, "run_plain", fail)
    assert callable(candidate)
    assert candidate() is None


def manager(program: str = "true", *, version: str | None = "3.10.8", needs_root: bool = False) -> Manager:
    return Manager(program, needs_root, lambda: version, lambda: None)


def test_a_package_of_another_series_is_refused() -> None:
    finding = DistributionPackage([manager()]).look("4.3")
    assert (finding.usable, finding.sentence) == (False, "true has 3.10.8, not 4.3")


def test_a_package_of_unknown_version_is_worth_a_try() -> None:
    assert "whatever version" in DistributionPackage([manager(version=None)]).look("4.3").sentence


def test_without_root_or_manager_there_is_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "prefix", lambda: None)
    assert "needs root" in DistributionPackage([manager(needs_root=True)]).look(None).sentence
    assert "none of no-such-manager" in DistributionPackage([manager("no-such-manager")]).look(None).sentence


def test_an_installed_package_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(installation, "find", lambda: iter([(Path("/opt/rabbitmq"), "3.10.8")]))
    supply = DistributionPackage([manager()]).take("3.10", said.append)
    assert (supply.version, said) == ("3.10.8", ["RabbitMQ: installed 3.10.8 in /opt/rabbitmq"])
    with pytest.raises(EmbeddedError, match=r"it is not RabbitMQ 4\.3"):
        DistributionPackage([manager()]).take("4.3", said.append)


def test_root_needs_no_sudo_and_others_need_one_without_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert package.prefix() == []
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert package.prefix() is None
    with pytest.raises(EmbeddedError, match="`apt-get` needs root"):
        package.run(["apt-get", "update"])


def test_a_command_that_fails_shows_the_end_of_what_it_said() -> None:
    with pytest.raises(EmbeddedError, match=r"exit code 3.*\nlast words"):
        package.run_plain(["sh", "-c", "echo last words; exit 3"])
    assert package.run_plain(["cat"], stdin="hello") == "hello"

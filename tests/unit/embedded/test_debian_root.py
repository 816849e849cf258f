from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tarry.embedded import debian_root, installation, package
from tarry.embedded import package as privilege
from tarry.embedded.folders import cache_folder
from tarry.embedded.machine import CachedRoot
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Builder:
    """Stands in for debootstrap and apt: makes the folders they would make."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.commands: list[list[str]] = []

    def run(self, command: Sequence[str], *, stdin: str | None = None) -> str:
        self.commands.append(list(command))
        if command[0] == "debootstrap":
            home = Path(command[3]) / f"usr/lib/rabbitmq/lib/rabbitmq_server-{self.version}"
            (home / "plugins" / f"rabbit-{self.version}").mkdir(parents=True)
            (home / "sbin").mkdir()
            (home / "sbin" / "rabbitmq-server").touch()
            (Path(command[3]) / "usr/sbin").mkdir()
        elif command[0] == "tee":
            Path(command[1]).write_text(stdin or "")
        elif command[0] == "mv":
            Path(command[1]).rename(command[2])
        elif command[0] == "rm":
            privilege.run_plain(command)
        return ""

    @property
    def programs(self) -> list[str]:
        return [Path(command[0]).name for command in self.commands]


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    fake = Builder("4.3.6")
    monkeypatch.setenv("TARRY_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda program, **_: f"/usr/bin/{program}")
    monkeypatch.setattr(privilege, "run", fake.run)
    monkeypatch.setattr(installation, "can_enter_roots", lambda: True)
    monkeypatch.setattr(debian_root, "mirror_of_this_machine", lambda: "http://mirror.example/debian/")
    return fake


def test_it_is_built_where_the_cache_is_and_stamped(builder: Builder, tmp_path: Path) -> None:
    said: list[str] = []
    root = debian_root.ensure("4.3", said.append)
    assert root == tmp_path / "rabbitmq-4.3"
    assert debian_root.stamped(root) == "4.3.6"
    assert not (tmp_path / "rabbitmq-4.3.building").exists()
    assert "takes a few minutes" in said[0]
    assert builder.commands[0][2:] == [
        "forky",
        f"{root}.building",
        "http://mirror.example/debian/",
        "/usr/share/debootstrap/scripts/sid",
    ]


def test_it_is_not_built_twice(builder: Builder) -> None:
    debian_root.ensure("4.3", lambda _: None)
    debian_root.ensure("4.3", lambda _: None)
    assert builder.programs.count("debootstrap") == 1


def test_a_half_built_one_is_built_anew(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "rabbitmq-4.3.building" / "half").mkdir(parents=True)
    (tmp_path / "rabbitmq-4.3" / "unstamped").mkdir(parents=True)
    root = debian_root.ensure("4.3", lambda _: None)
    assert debian_root.stamped(root) == "4.3.6"
    assert not (root / "unstamped").exists()
    removals = [command for command in builder.commands if command[0] == "rm"]
    assert len(removals) == 2
    assert all("--one-file-system" in command for command in removals)


def test_another_version_than_promised_is_refused(builder: Builder, tmp_path: Path) -> None:
    builder.version = "4.4.0"
    with pytest.raises(EmbeddedError, match=r"carries RabbitMQ 4.4.0, not 4.3"):
        debian_root.ensure("4.3", lambda _: None)
    assert not (tmp_path / "rabbitmq-4.3").exists()


def test_debootstrap_is_installed_when_missing(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    said: list[str] = []
    monkeypatch.setattr("shutil.which", lambda program, **_: None if program == "debootstrap" else "/bin/true")
    monkeypatch.setattr(package, "install_debian_package", installed.append)
    debian_root.ensure("4.3", said.append)
    assert (installed, said[0]) == (["debootstrap"], "RabbitMQ: installing debootstrap with apt-get")


def test_the_source_says_what_it_would_do(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privilege, "prefix", list)
    assert "only for series 4.3" in CachedRoot().look(None).sentence
    assert "building 4.3 from Debian forky" in CachedRoot().look("4.3").sentence
    supply = CachedRoot().take("4.3", lambda _: None)
    assert (supply.version, supply.installation.root) == ("4.3.6", debian_root.folder("4.3"))
    assert "taking 4.3.6" in CachedRoot().look("4.3").sentence


def test_a_root_without_a_broker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="Remove that folder"):
        CachedRoot(build=lambda _series, _announce: tmp_path).take("4.3", lambda _: None)


def test_what_stands_in_the_way_is_said(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privilege, "prefix", lambda: None)
    assert CachedRoot().look("4.3").sentence == "needs root or `sudo -n`, once"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert CachedRoot().look("4.3").sentence == "needs a Debian-like Linux"
    monkeypatch.setattr(installation, "can_enter_roots", lambda: False)
    assert "allows no mount namespaces" in CachedRoot().look("4.3").sentence
    monkeypatch.setattr("sys.platform", "darwin")
    assert CachedRoot().look("4.3").sentence == "needs Linux"


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["http://a.example/debian/", "http://a.example/debian-security/"], "http://a.example/debian/"),
        (["http://a.example/debian-security/", "http://b.example/debian"], "http://b.example/debian"),
        (["https://packages.example/node_20.x"], None),
        ([], None),
    ],
)
def test_the_mirror_is_the_one_of_this_machine(addresses: list[str], expected: str | None) -> None:
    assert debian_root.first_mirror(addresses) == expected


def test_a_machine_without_apt_has_no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sequence[str]) -> str:
        raise EmbeddedError("no apt")

    monkeypatch.setattr(privilege, "run_plain", fail)
    assert debian_root.mirror_of_this_machine() is None


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARRY_CACHE", "/one")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("TARRY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_folder() == Path("/two/tarry")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/three")
    assert cache_folder() == Path("/three/.cache/tarry")

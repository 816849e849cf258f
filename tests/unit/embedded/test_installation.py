from __future__ import annotations

from pathlib import Path

import pytest

from tarry.embedded import installation
from tarry.embedded.installation import RabbitInstallation, find, in_series, inside_root, version_of
from tarry.embedded.machine import OnThisMachine
from tarry.errors import EmbeddedError


def make_home(root: Path, folder: str, version: str, plugin: str = "rabbit-{}") -> Path:
    home = root / folder
    (home / "plugins" / plugin.format(version)).mkdir(parents=True)
    (home / "plugins" / "rabbit_common-0.0.1").mkdir()
    (home / "sbin").mkdir()
    (home / "sbin" / "rabbitmq-server").touch()
    return home


@pytest.mark.parametrize(
    ("version", "series", "expected"),
    [
        ("3.10.8", None, True),
        ("3.10.8", "3.10", True),
        ("3.10.8", "3.1", False),
        ("4.3.6", "4", True),
        ("4.3.6", "3.10", False),
        ("4.3", "4.3", True),
        ("4.30.1", "4.3", False),
    ],
)
def test_a_series_is_a_prefix_of_whole_numbers(version: str, series: str | None, *, expected: bool) -> None:
    assert in_series(version, series) is expected


def test_every_installation_is_found_newest_first(tmp_path: Path) -> None:
    old = make_home(tmp_path, "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8", "3.10.8")
    new = make_home(tmp_path, "usr/lib/rabbitmq/lib/rabbitmq_server-4.3.6", "4.3.6")
    brewed = make_home(tmp_path, "opt/homebrew/opt/rabbitmq", "4.2.0", plugin="rabbit-{}.ez")
    assert list(find(tmp_path)) == [(new, "4.3.6"), (old, "3.10.8"), (brewed, "4.2.0")]


def test_a_folder_without_a_server_is_no_installation(tmp_path: Path) -> None:
    home = make_home(tmp_path, "opt/rabbitmq", "4.1.0")
    (home / "sbin" / "rabbitmq-server").unlink()
    assert list(find(tmp_path)) == []
    assert version_of(tmp_path) is None


def test_the_programs_of_this_machine_are_called_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_home(tmp_path, "opt/rabbitmq", "4.1.0")
    here = RabbitInstallation(home, "4.1.0", "test")
    assert here.command("rabbitmq-server", folder=tmp_path) == [str(home / "sbin/rabbitmq-server")]
    monkeypatch.setattr("shutil.which", lambda _: "/somewhere/epmd")
    assert here.command("epmd", "-port", "1", folder=tmp_path) == ["/somewhere/epmd", "-port", "1"]


def test_a_missing_erlang_is_an_error_that_says_so(tmp_path: Path) -> None:
    here = RabbitInstallation(make_home(tmp_path, "opt/rabbitmq", "4.1.0"), "4.1.0", "test")
    with pytest.raises(EmbeddedError, match="Erlang's no-such-program is not on PATH"):
        here.command("no-such-program", folder=tmp_path)


def test_the_programs_of_a_root_run_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    home = make_home(tmp_path, "usr/lib/rabbitmq/lib/rabbitmq_server-4.3.6", "4.3.6")
    rooted = RabbitInstallation(home, "4.3.6", "test", root=tmp_path)
    command = rooted.command("rabbitmq-server", folder=Path("/srv/data"))
    assert command[-4:] == [
        str(tmp_path),
        "/srv/data",
        "--",
        "/usr/lib/rabbitmq/lib/rabbitmq_server-4.3.6/sbin/rabbitmq-server",
    ]
    assert rooted.command("epmd", folder=Path("/srv/data"))[-1] == "/usr/bin/epmd"


def test_folders_in_the_temporary_folder_are_shown_with_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")  # noqa: S108  nothing is written
    home = make_home(tmp_path, "usr/lib/rabbitmq/lib/rabbitmq_server-4.3.6", "4.3.6")
    command = RabbitInstallation(home, "4.3.6", "test", root=tmp_path).command("epmd", folder=Path("/tmp/tarry-1"))  # noqa: S108
    assert command[-3:] == ["/tmp", "--", "/usr/bin/epmd"]  # noqa: S108


def test_an_unprivileged_user_enters_a_root_by_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "--map-root-user" in inside_root(Path("/root-folder"), ["/bin/true"])
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "--map-root-user" not in inside_root(Path("/root-folder"), ["/bin/true"])


def test_a_machine_without_unshare_cannot_enter_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/no/such/unshare")
    assert not installation.can_enter_roots()
    monkeypatch.setattr("shutil.which", lambda _: "/bin/false")
    assert not installation.can_enter_roots()


def test_a_root_is_for_linux_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(EmbeddedError, match="only runs on Linux"):
        inside_root(Path("/root-folder"), ["/bin/true"])


def test_only_a_matching_version_of_this_machine_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_home(tmp_path, "opt/rabbitmq", "4.1.0")
    monkeypatch.setattr(installation, "find", lambda: iter([(home, "4.1.0")]))
    assert OnThisMachine().look("4.1").usable
    assert OnThisMachine().take("4.1", print).version == "4.1.0"
    refusal = OnThisMachine().look("3.10")
    assert (refusal.usable, refusal.sentence) == (False, "only 4.1.0, not 3.10")
    with pytest.raises(EmbeddedError):
        OnThisMachine().take("3.10", print)
    monkeypatch.setattr(installation, "find", lambda: iter([]))
    assert OnThisMachine().look(None).sentence == "not installed"

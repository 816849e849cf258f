from __future__ import annotations

import os
from pathlib import Path

import pytest

from tarry.embedded import postgresql
from tarry.embedded import postgresql as unprivileged
from tarry.embedded.folders import Folder, tail
from tarry.embedded.layout import Layout
from tarry.embedded.postgresql import SystemUser, first_closed_folder, must_reach, other_user, reachable_copy
from tarry.errors import EmbeddedError

STRANGER = SystemUser(54321, 54321)


def test_a_folder_that_was_not_given_is_thrown_away() -> None:
    folder = Folder("test")
    assert folder.path.is_dir()
    assert folder.to_remove == [folder.path]
    folder.close()
    folder.close()
    assert not folder.path.exists()


def test_a_given_folder_is_kept_and_locked(tmp_path: Path) -> None:
    folder = Folder("test", tmp_path / "kept")
    assert folder.to_remove == []
    with pytest.raises(EmbeddedError, match="in use by another private test"):
        Folder("test", tmp_path / "kept")
    folder.close()
    Folder("test", tmp_path / "kept").close()


def test_the_tail_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == ""
    (tmp_path / "some").write_text("1\n2\n3\n")
    assert tail(tmp_path / "some", 2) == "2\n3"


def test_a_kept_folder_makes_the_same_node_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first = layout.identity("shared-cookie")
    layout.write(first, ["channel_max = 7"])
    assert layout.identity() == first
    layout.write(first, [])
    assert layout.cookie.read_text() == "shared-cookie"
    assert layout.cookie.stat().st_mode & 0o777 == 0o400
    first.choose_ports()
    assert layout.identity() != first


def test_every_listener_is_on_loopback(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    identity = layout.identity()
    layout.write(identity, [])
    listeners = [line for line in (tmp_path / "rabbitmq.conf").read_text().splitlines() if "tcp" in line]
    assert listeners == [
        f"listeners.tcp.1 = 127.0.0.1:{identity.amqp}",
        "management.tcp.ip = 127.0.0.1",
        f"management.tcp.port = {identity.management}",
    ]
    environment = layout.environment(identity, 4369)
    assert environment["ERL_EPMD_ADDRESS"] == "127.0.0.1"
    assert "inet_dist_use_interface {127,0,0,1}" in environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]


@pytest.fixture
def closed(open_folder: Path) -> Path:
    (open_folder / "closed" / "inner").mkdir(parents=True)
    (open_folder / "closed").chmod(0o700)
    return open_folder / "closed"


def test_a_closed_folder_on_the_way_is_named(closed: Path) -> None:
    assert first_closed_folder(closed, STRANGER) is None
    assert first_closed_folder(closed / "inner", STRANGER) == closed
    assert first_closed_folder(closed / "inner", SystemUser(os.getuid(), os.getgid())) is None
    with pytest.raises(EmbeddedError, match=f"chmod o\\+x {closed}"):
        must_reach(closed / "inner", STRANGER)


def test_programs_behind_a_closed_folder_are_copied_with_their_libraries(
    closed: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = closed / "wheel" / "pginstall"
    (install / "bin").mkdir(parents=True)
    (install / "bin" / "postgres").write_text("program")
    (closed / "wheel.libs").mkdir()
    (closed / "wheel.libs" / "libz.so").touch()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(open_folder))
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(open_folder / prefix))
    copy = reachable_copy(install, STRANGER)
    assert copy.is_relative_to(open_folder)
    assert (copy / "bin" / "postgres").read_text() == "program"
    assert (copy / "../../wheel.libs/libz.so").exists()
    assert reachable_copy(install, STRANGER) == copy
    assert reachable_copy(copy, STRANGER) == copy


def test_only_root_needs_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert other_user(tmp_path) is None
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(unprivileged, "CANDIDATES", ("no-such-user",))
    if tmp_path.stat().st_uid == 0:
        with pytest.raises(EmbeddedError, match="no user no-such-user"):
            other_user(tmp_path)


def test_without_the_wheel_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EmbeddedError, match=r"pip install 'tarry\[embedded\]'"):
        postgresql.find_install()

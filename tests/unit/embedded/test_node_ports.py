from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tarry.embedded import management, node
from tarry.embedded.installation import RabbitInstallation
from tarry.embedded.node import Node
from tarry.errors import StartupError

if TYPE_CHECKING:
    from pathlib import Path

    from tarry.embedded.guarded import GuardedProgram


class Mapper:
    port = 4369


class FakeGuarded:
    """Ends at once, as long as `complaints` last, with each of them in the log."""

    complaints: list[str]

    def __init__(self, **_: object) -> None:
        self.running = False

    def start(self, service: GuardedProgram) -> None:
        self.running = not self.complaints
        if self.complaints:
            with open(service.log, "w") as log:  # noqa: PTH123  a string, as the guardian gets it
                log.write(self.complaints.pop(0))

    def kill(self) -> None:
        self.running = False


def make_node(folder: Path, monkeypatch: pytest.MonkeyPatch, *complaints: str) -> Node:
    monkeypatch.setattr(FakeGuarded, "complaints", list(complaints), raising=False)
    monkeypatch.setattr(node, "Guarded", FakeGuarded)
    monkeypatch.setattr(management, "serves", lambda *_: True)
    (folder / "sbin").mkdir()
    (folder / "sbin" / "rabbitmq-server").touch()
    return Node(RabbitInstallation(folder, "4.3.6", "test"), Mapper(), folder, throwaway=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "complaint",
    [
        "Failed to start Ranch listener {acceptor,{127,0,0,1},31931} ... reason: eaddrinuse (address already in use)",
        'reason: {dist_port_already_used,27733,not_erlang,"localhost"}',
    ],
)
def test_taken_in_the_very_moment_of_its_first_start(
    complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = make_node(tmp_path, monkeypatch, complaint)
    before = fresh.identity.amqp
    fresh.start()
    assert fresh.identity.amqp != before
    assert f"127.0.0.1:{fresh.identity.amqp}" in (tmp_path / "rabbitmq.conf").read_text()


def test_taken_since_its_last_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = make_node(tmp_path, monkeypatch)
    before, amqp = fresh.identity.management, fresh.identity.amqp
    with socket.create_server(("127.0.0.1", before)):
        fresh.start()
    assert fresh.identity.management != before
    assert fresh.identity.amqp == amqp


def test_but_not_once_its_address_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = make_node(tmp_path, monkeypatch)
    fresh.start()
    address = fresh.amqp_url
    fresh.kill()
    monkeypatch.setattr(FakeGuarded, "complaints", ["eaddrinuse"])
    with pytest.raises(StartupError, match="eaddrinuse"):
        fresh.start()
    assert fresh.amqp_url == address


def test_any_other_complaint_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartupError, match="unknown variable"):
        make_node(tmp_path, monkeypatch, "unknown variable", "eaddrinuse").start()


def test_it_does_not_try_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartupError):
        make_node(tmp_path, monkeypatch, *["eaddrinuse"] * node.PORT_ATTEMPTS).start()

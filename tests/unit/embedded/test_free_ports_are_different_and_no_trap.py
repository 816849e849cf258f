from __future__ import annotations

import socket

import pytest

from tarry.embedded import ports


def test_they_are_different_and_below_the_ephemeral_range() -> None:
    found = ports.free(50)
    assert len(set(found)) == 50
    assert all(ports.LOWEST <= port <= ports.HIGHEST < 32768 for port in found)


def test_a_port_in_use_is_not_free() -> None:
    [port] = ports.free(1)
    assert ports.is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not ports.is_free(port)


def test_when_there_are_none_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda *_: False)
    with pytest.raises(OSError, match="no free port"):
        ports.free(1)

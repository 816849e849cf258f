from __future__ import annotations

import socket
from pathlib import Path

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


def test_again_replaces_only_the_ports_that_are_taken() -> None:
    before = ports.free(3)
    assert ports.again(before) == before
    with socket.create_server(("127.0.0.1", before[1])):
        after = ports.again(before)
    assert (after[0], after[2]) == (before[0], before[2])
    assert len({*before, *after}) == 4


@pytest.mark.parametrize("text", ["", "{", "[1]", '["1", "2"]', "{}", "3"])
def test_read_takes_a_damaged_file_for_no_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    assert ports.read(file, 2) == [None, None]
    file.write_text(text)
    assert ports.read(file, 2) == [None, None]
    ports.write(file, [4, 5])
    assert ports.read(file, 2) == [4, 5]

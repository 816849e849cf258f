from __future__ import annotations

from pathlib import Path

import pytest

from tarry.demo import kept_ports


def test_kept_ports_are_read_again_and_changes_are_told(tmp_path: Path) -> None:
    first = kept_ports.read(tmp_path)
    assert first == {"HTTP": 8086}
    assert kept_ports.keep(tmp_path, first, {"HTTP": 8086, "AMQP": 20001}) == []
    second = kept_ports.read(tmp_path)
    assert second == {"HTTP": 8086, "AMQP": 20001}
    assert kept_ports.keep(tmp_path, second, {"HTTP": 8086, "AMQP": 20002}) == [
        "The AMQP port was 20001, which is in use; it is 20002 now."
    ]


def test_kept_ports_of_a_throwaway_installation_are_none() -> None:
    assert kept_ports.read(None) == {}
    assert kept_ports.keep(None, {}, {"HTTP": 8086}) == []


@pytest.mark.parametrize("text", ["{", "[1]", '{"HTTP": "x"}'])
def test_kept_ports_ignore_a_damaged_file(text: str, tmp_path: Path) -> None:
    (tmp_path / kept_ports.FILE).write_text(text)
    assert kept_ports.read(tmp_path) == {"HTTP": 8086}

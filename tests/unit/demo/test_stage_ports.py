from __future__ import annotations

from pathlib import Path

import pytest

from tarry.demo import stage


def test_kept_ports_are_read_again_and_changes_are_told(tmp_path: Path) -> None:
    first = stage.read(tmp_path)
    assert first == {"HTTP": 8086}
    assert stage.keep(tmp_path, first, {"HTTP": 8086, "AMQP": 20001}) == []
    second = stage.read(tmp_path)
    assert second == {"HTTP": 8086, "AMQP": 20001}
    assert stage.keep(tmp_path, second, {"HTTP": 8086, "AMQP": 20002}) == [
        "The AMQP port was 20001, which is in use; it is 20002 now."
    ]


def test_kept_ports_of_a_throwaway_installation_are_none() -> None:
    assert stage.read(None) == {}
    assert stage.keep(None, {}, {"HTTP": 8086}) == []


@pytest.mark.parametrize("text", ["{", "[1]", '{"HTTP": "x"}'])
def test_kept_ports_ignore_a_damaged_file(text: str, tmp_path: Path) -> None:
    (tmp_path / stage.FILE).write_text(text)
    assert stage.read(tmp_path) == {"HTTP": 8086}

"""Where a test run keeps the data of its services."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import memory_disk


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)


def test_memory_disk_is_used_where_there_is_enough_of_it(tmp_path: Path) -> None:
    made = memory_disk.folder(tmp_path, enough=1)
    assert made is not None
    assert made.parent == tmp_path
    assert memory_disk.folder(tmp_path, enough=2**60) is None
    assert memory_disk.folder(tmp_path / "missing", enough=1) is None


def test_memory_disk_is_not_used_where_somebody_chose_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert memory_disk.folder(tmp_path, enough=1) is None


def test_memory_disk_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    dead, alive = tmp_path / "tarry-tests-999999999-x", tmp_path / f"tarry-tests-{os.getpid()}-x"
    dead.mkdir()
    alive.mkdir()
    memory_disk.remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [alive]

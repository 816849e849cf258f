"""A policy file that does harm, or tries to: one line with the file and the key, soon; a running router goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tarry.core.policy import LONGEST_GLOB
from tarry.errors import SettingsError, TopologyError
from tarry.settings import load_settings
from tarry.topology.load import load
from tests.harness.waiting import wait_for
from tests.hostile.poisons import POISONS, POLICY, Poison
from tests.integration.router.serving import Place, Router

SOON = 5.0
"""Seconds of processor time; nearly all take milliseconds."""
LONGEST_LINE = 500
LIVE = 15
"""The first so many are those that could stop a process; the others are read the same way."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "tarry.toml").write_text(POLICY.format(name="default"))
    assert load(tmp_path).policies[0].name == "default"
    return tmp_path


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.name)
def test_it_is_told_in_a_line_with_file_and_key(folder: Path, poison: Poison) -> None:
    path = folder / "policies" / "50-poison.toml"
    poison.make(path)
    started = time.process_time()
    with pytest.raises(TopologyError) as refused:
        load(folder)
    assert time.process_time() - started < SOON
    lines = refused.value.problems
    for words in poison.said:
        assert any(words in line for line in lines), lines[:3]
    for line in lines:
        assert str(path) in line or "mistakes more" in line
        assert len(line) < LONGEST_LINE + len(str(path))
        assert "\n" not in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder: Path) -> None:
    path = folder / "policies" / "50-closed.toml"
    path.write_text(POLICY.format(name="closed"))
    path.chmod(0)
    with pytest.raises(TopologyError, match="Permission denied"):
        load(folder)


@pytest.mark.parametrize("poison", [one for one in POISONS if one.said[0] != "policy p"][:14], ids=lambda one: one.name)
def test_a_settings_file_is_read_as_carefully(tmp_path: Path, poison: Poison) -> None:
    path = tmp_path / "tarry-settings.toml"
    poison.make(path)
    with pytest.raises(SettingsError, match=r"tarry-settings\.toml: ") as refused:
        load_settings(path)
    assert len(str(refused.value).splitlines()) == 1


def test_the_command_says_it_and_shows_no_traceback(folder: Path) -> None:
    (folder / "policies" / "50-poison.toml").write_text("a = " + "[" * 100_000)
    command = [sys.executable, "-m", "tarry", "topology", "show", "--topology", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "50-poison.toml: not TOML that can be used: it is nested too deep" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("unit", ["*a", "*?", "*[ab]", "*a*", "[!b]*", "?*?"])
def test_no_pattern_of_a_policy_can_be_made_slow_by_an_error_text(unit: str) -> None:
    """Patterns are globs, matched without going back: the worst pattern there may be, on the longest text there is."""
    pattern = (unit * LONGEST_GLOB)[: LONGEST_GLOB - 1] + "b"
    started = time.process_time()
    for error_text in ("a" * 4_096, "ab" * 2_048, "a" * 4_095 + "c"):
        fnmatchcase(error_text, pattern)
    assert time.process_time() - started < 1


def test_a_running_router_keeps_its_policies_through_all_of_it(place: Place, start: Callable[..., Router]) -> None:
    folder = place.folder / "policies"
    folder.mkdir()
    router = start().wait_ready()
    queue = place.origin("quick.orders")
    path = folder / "50-poison.toml"
    for poison in POISONS[:LIVE]:
        told = len(router.said("the old one stays"))
        poison.make(path)
        router.process.send_signal(signal.SIGHUP)
        lines = wait_told(router, told, poison)
        assert all(any(words in line for line in lines) for words in poison.said), lines[:3]
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        place.request(queue, poison.name)
        assert place.take(queue, 1) == [poison.name]
    assert router.ready() == (200, [])
    assert router.metric("tarry_policy_info", policy="quick") == 1


def wait_told(router: Router, before: int, poison: Poison) -> list[str]:
    said = wait_for(
        lambda: router.said("the old one stays")[before:], deadline=20, what=f"the router to complain of {poison.name}"
    )
    lines: list[str] = said[-1]["problems"]
    return lines

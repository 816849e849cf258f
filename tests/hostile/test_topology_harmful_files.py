"""A policy file that does harm, or tries to: one line with the file and the key, soon; a running router goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest

from tarry.core.policy import LONGEST_GLOB
from tarry.errors import SettingsError, TopologyError
from tarry.settings import load_settings
from tarry.topology.load import load
from tests.hostile.poisons import POISONS, POLICY, Poison
from tests.support.cli import run_process
from tests.support.installation import Installation
from tests.support.router import Router, spawn_router
from tests.support.waiting import wait_for

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
        assert str(path) in line or "more errors" in line
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
    done = run_process(["topology", "show", "--topology", str(folder)])
    assert done.returncode == 7
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "50-poison.toml: not TOML that can be used: it is nested too deeply" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("unit", ["*a", "*?", "*[ab]", "*a*", "[!b]*", "?*?"])
def test_no_pattern_of_a_policy_can_be_made_slow_by_an_error_text(unit: str) -> None:
    """Patterns are globs, matched without going back: the worst pattern there may be, on the longest text there is."""
    pattern = (unit * LONGEST_GLOB)[: LONGEST_GLOB - 1] + "b"
    started = time.process_time()
    for error_text in ("a" * 4_096, "ab" * 2_048, "a" * 4_095 + "c"):
        fnmatchcase(error_text, pattern)
    assert time.process_time() - started < 1


QUICK_TO_LOOK = "import tarry.service.reload as it; it.LOOK_EVERY = 0.1; from tarry.__main__ import run; run()"
"""A router that looks at its files twenty times as often as it does by itself."""


@pytest.fixture
def router(installation: Installation) -> Iterator[Router]:
    command = [sys.executable, "-c", QUICK_TO_LOOK, "serve"]
    made = spawn_router(command, installation.environment, installation.folder / "router.log")
    yield made.wait_ready()
    made.kill()


def test_a_running_router_keeps_its_policies_through_all_of_it(installation: Installation, router: Router) -> None:
    folder = installation.folder / "policies"
    folder.mkdir()
    queue = installation.declare("quick.orders")
    for number, poison in enumerate(POISONS[:LIVE]):
        path = folder / f"50-poison-{number}.toml"
        poison.make(path)
        router.process.send_signal(signal.SIGHUP)
        wait_for(partial(complained, router, path, poison), deadline=60, what=f"a complaint of {poison.name}")
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        installation.request(queue, poison.name)
    assert sorted(installation.take_ids(queue, LIVE)) == sorted(poison.name for poison in POISONS[:LIVE])
    assert router.ready() == (200, [])
    assert router.metric("tarry_policy_info", policy="quick") == 1


def complained(router: Router, path: Path, poison: Poison) -> bool:
    """In one report. It may have seen the file half written before, or have told of the one before it once more."""
    reports: list[list[str]] = [one["problems"] for one in router.logged("the old one stays")]
    return any(
        any(str(path) in line for line in lines) and all(any(words in line for line in lines) for words in poison.said)
        for lines in reports
    )

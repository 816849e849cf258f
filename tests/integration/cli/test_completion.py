"""Completion in bash, zsh and fish: what the program answers to them, and what the shells make of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from tarry.cli.start import COMPLETING, TYPED, wanted
from tests.support.cli import run_process
from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.waiting import wait_for

RUNNING = Path(__file__).parents[3] / "docs" / "running.md"
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def shell(request: pytest.FixtureRequest) -> str:
    """The path of a shell. Its test is skipped where it is not installed, and a warning says so."""
    name: str = request.param
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed: completion in it is NOT tested (apt-get install {name})"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    return found


PROGRAM = Path(sys.executable).with_name("tarry")
"""As it is installed: the variable by which shells ask has the name of the program in it."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home folder without files, and `tarry` on the path."""
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    config = str(tmp_path / ".config")
    return {"HOME": str(tmp_path), "PATH": path, "XDG_CONFIG_HOME": config, "PS1": "$ "}


def asked(words: str, shell: str) -> str:
    """What the program answers if this shell asks how to complete a command line."""
    bash = {"COMP_WORDS": words.replace(" ", "\n"), "COMP_CWORD": str(words.count(" "))}
    others = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    how = {COMPLETING: f"complete_{shell}"} | (bash if shell == "bash" else others)
    done = run_process([], how, command=[str(PROGRAM)])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", SHELLS)
def test_completion_answers_with_the_commands_that_begin_so(name: str) -> None:
    answer = asked("tarry topology dr", name)
    assert "drain" in answer
    assert "prune" not in answer


def test_completion_answers_with_commands_options_and_values() -> None:
    assert set(asked("tarry to", "bash").split()) == {"top", "topology", "token"}
    assert "--older-than" in asked("tarry audit prune --o", "fish")
    assert "scheduled" in asked("tarry retries list --state sch", "zsh")


def test_completion_of_a_command_imports_its_module_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPLETING, "complete_bash")
    monkeypatch.setenv(TYPED[1], "tarry\nreview\n")
    assert wanted([]) == ["review"]
    monkeypatch.setenv(TYPED[1], "tarry\nreview")
    assert len(wanted([])) > 1


def install(shell: str, environment: Mapping[str, str]) -> None:
    """As a user does, in that shell."""
    done = subprocess.run(
        [shell, "-c", "tarry --install-completion; true"],  # more than one command: else the shell becomes the program
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert f"{Path(shell).name} completion installed" in done.stdout, done.stderr


def complete_at_first_tab(terminal: PseudoTerminal, setup: str) -> None:
    terminal.type(f"{setup}; echo rea''dy\n")
    # What is typed before the prompt is there may be lost.
    wait_for(lambda: terminal.plain.partition("\nready\n")[2].rstrip().endswith("$"), deadline=120, what="a prompt")
    terminal.type("tarry topology dr\t")
    terminal.wait_text("tarry topology drain ")


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_completion_is_installed_in_bash(shell: str, environment: dict[str, str]) -> None:
    install(shell, environment)
    with PseudoTerminal([shell, "--norc", "--noprofile", "-i"], environment) as terminal:
        complete_at_first_tab(terminal, ". ~/.bashrc")


@pytest.mark.parametrize("shell", ["zsh"], indirect=True)
def test_completion_is_loaded_by_zsh(shell: str, environment: dict[str, str]) -> None:
    """By the line that docs/running.md has."""
    [line] = re.findall(r"^eval .*source_zsh.*$", RUNNING.read_text("utf-8"), re.MULTILINE)
    with PseudoTerminal([shell, "-f", "-i"], environment) as terminal:
        complete_at_first_tab(terminal, f"autoload -Uz compinit && compinit -u -D; {line}")


@pytest.mark.parametrize("shell", ["fish"], indirect=True)
def test_completion_is_installed_in_fish(shell: str, environment: dict[str, str]) -> None:
    install(shell, environment)
    done = subprocess.run(
        [shell, "-c", "complete --do-complete 'tarry topology dr'"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] == "drain"

"""Who asks for one command gets that one, as if all were there; and nothing else is imported for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from tarry.cli.start import COMPLETING, CONTENTS, made, wanted

NAMES = [name for names in CONTENTS.values() for name in names]


def commands(app: typer.Typer) -> list[str]:
    group = typer.main.get_command(app)
    return list(group.commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", CONTENTS)
def test_the_table_of_contents_is_true(module: str) -> None:
    assert sorted(commands(made([module]))) == sorted(CONTENTS[module])


def test_together_they_are_the_whole_command() -> None:
    assert sorted(commands(made(CONTENTS))) == sorted(NAMES)


@pytest.mark.parametrize("words", [[], ["--help"], ["satus"], ["--verbose", "status"]])
def test_help_and_typing_errors_know_every_command(words: list[str]) -> None:
    assert wanted(words) == list(CONTENTS)


def test_a_shell_that_completes_is_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPLETING, "complete_bash")
    assert wanted(["status"]) == list(CONTENTS)


def test_one_command_needs_one_module() -> None:
    assert wanted(["resume", "orders"]) == ["control"]


def test_the_version_needs_neither_broker_nor_postgres() -> None:
    program = (
        "import sys; sys.argv = ['tarry', '--version']; from tarry.__main__ import run\n"
        "try: run()\n"
        "finally: print(*{'pika', 'psycopg', 'fastapi', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ""

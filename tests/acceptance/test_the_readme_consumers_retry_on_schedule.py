"""The README's first walk, from top to bottom as it is written, against `tarry up` in real time."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from tests.acceptance.up_command import Running, plain_environment, running, up
from tests.harness.waiting import wait_for

ROOT = Path(__file__).parents[2]
WALK = "## Your own queue, in ten lines"
BODY = b"an order"
DELAYS = (2, 4, 8)
"""Seconds: the default policy, with up to a second of jitter."""
SLACK = 15.0
EXHAUSTED = "exhausted: 3 of 3 retries spent"


def walk() -> list[tuple[str, str]]:
    """The code blocks of that section in order, each with its language."""
    section = (ROOT / "README.md").read_text().partition(f"{WALK}\n")[2].partition("\n## ")[0]
    return re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL)


def files() -> dict[str, str]:
    """The Python blocks, by the file name in their first line."""
    return {text.splitlines()[0].removeprefix("# "): text for language, text in walk() if language == "python"}


def commands() -> list[str]:
    lines = [line for language, text in walk() if language == "console" for line in text.splitlines()]
    return [line.removeprefix("$ ") for line in lines]


def test_readme_walk_has_two_consumers_of_about_ten_lines() -> None:
    found = files()
    assert list(found) == ["send.py", "orders.py", "payments.py"]
    for text in found.values():
        assert len([line for line in text.splitlines() if line.strip()]) <= 12


def test_readme_walk_works_as_written(series: str | None, open_folder: Path) -> None:
    (open_folder / ".venv").symlink_to(sys.prefix)
    first, *rest = commands()
    assert first == "make up"
    with up(open_folder, series) as made:
        pasted = "\n".join(line for line in made.text.splitlines() if line.lstrip().startswith("export "))
        for name, text in files().items():
            (open_folder / name).write_text(text)
        shell = Shell(pasted, open_folder, made.exports["DATABASE_URL"])
        shown = [shell.run(command) for command in rest]
        assert shown[-1].count(EXHAUSTED) == 2
        assert shell.ask("select error_type, error_reason from retry where queue = 'payments'") == (
            "ValueError",
            "the card was declined",
        )


@dataclass
class Shell:
    """A shell into which the export lines were pasted."""

    pasted: str
    folder: Path
    dsn: str
    consumers: int = 0

    def run(self, command: str) -> str:
        """What it prints. A consumer runs until its message is in review."""
        shell = ["sh", "-c", f"{self.pasted}\nexec {command}"]
        environment = plain_environment() | {"PYTHONUNBUFFERED": "1"}
        if command.endswith(("orders.py", "payments.py")):
            self.consumers += 1
            with running(shell, environment, self.folder) as consumer:
                wait_for(self.is_reviewed, deadline=120, what=f"the message of {command} to be in review")
            assert_on_schedule(consumer)
            return consumer.text
        done = subprocess.run(
            shell, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def is_reviewed(self) -> bool:
        return self.ask("select count(*) from retry where state = 'in_review'") == (self.consumers,)

    def ask(self, question: LiteralString) -> tuple[Any, ...] | None:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(question).fetchone()


def assert_on_schedule(one: Running) -> None:
    assert [line for _, line in one.attempts] == [f"attempt {number} {BODY!r}" for number in (1, 2, 3, 4)], one.text
    gaps = [later - sooner for (sooner, _), (later, _) in pairwise(one.attempts)]
    for gap, delay in zip(gaps, DELAYS, strict=True):
        assert delay - 0.1 <= gap < delay + SLACK, f"gaps {gaps} for delays {DELAYS}"

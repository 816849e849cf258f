"""The walk of docs/start.md, from top to bottom as it is written, against `tarry up` with its clock running faster."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from tests.acceptance.shipped import copy_of_the_shipped_topology
from tests.acceptance.up_command import plain_environment, running, up
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
WALK = "## Your own queue, in ten lines"
BODY = b"an order"
SCALE = 0.1
DELAYS_MS = (200, 400, 800)
"""2, 4 and 8 seconds at that scale; with up to a second of jitter."""
JITTER_MS = 100 + 125
"""And a granule of the ladder."""
EXHAUSTED = "exhausted: 3 of 3 retries spent"


def walk() -> list[tuple[str, str]]:
    """The code blocks of that section in order, each with its language."""
    section = (ROOT / "docs" / "start.md").read_text().partition(f"{WALK}\n")[2].partition("\n## ")[0]
    return re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL)


def files() -> dict[str, str]:
    """The Python blocks, by the file name in their first line."""
    return {text.splitlines()[0].removeprefix("# "): text for language, text in walk() if language == "python"}


def commands() -> list[str]:
    lines = [line for language, text in walk() if language == "console" for line in text.splitlines()]
    return [line.removeprefix("$ ") for line in lines]


def test_start_walk_has_two_consumers_of_about_ten_lines() -> None:
    found = files()
    assert list(found) == ["send.py", "orders.py", "payments.py"]
    for text in found.values():
        assert len([line for line in text.splitlines() if line.strip()]) <= 12


def test_start_walk_works_as_written(series: str | None, open_folder: Path) -> None:
    (open_folder / ".venv").symlink_to(sys.prefix)
    first, *rest = commands()
    assert first == "make up"
    topology = copy_of_the_shipped_topology(open_folder / "topology", SCALE)
    settings = {"TARRY_TOPOLOGY": str(topology)}
    with up(open_folder, series, environment=settings) as made:
        pasted = "\n".join(line for line in made.text.splitlines() if line.lstrip().startswith("export "))
        for name, text in files().items():
            (open_folder / name).write_text(text)
        shell = Shell(pasted, open_folder, settings, made.exports["DATABASE_URL"])
        shown = [shell.run(command) for command in rest]
        assert shown[-1].count(EXHAUSTED) == 2
        assert shell.ask("select error_type, error_reason from retry where queue = 'payments'") == (
            "ValueError",
            "the card was declined",
        )
        for queue in ("orders", "payments"):
            assert_on_schedule(shell, queue)


@dataclass
class Shell:
    """A shell into which the export lines were pasted."""

    pasted: str
    folder: Path
    settings: dict[str, str]
    dsn: str
    consumers: int = 0

    def run(self, command: str) -> str:
        """What it prints. A consumer runs until its message is in review."""
        shell = ["sh", "-c", f"{self.pasted}\nexec {command}"]
        environment = plain_environment() | {"PYTHONUNBUFFERED": "1"} | self.settings
        if command.endswith(("orders.py", "payments.py")):
            self.consumers += 1
            with running(shell, environment, self.folder) as consumer:
                wait_for(self.is_reviewed, deadline=120, what=f"the message of {command} to be in review")
            attempts = [f"attempt {number} {BODY!r}" for number in (1, 2, 3, 4)]
            assert re.findall(r"(?m)^attempt \d b.*$", consumer.text) == attempts, consumer.text
            return consumer.text
        done = subprocess.run(
            shell, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def is_reviewed(self) -> bool:
        return self.ask("select count(*) from retry where state = 'in_review'") == (self.consumers,)

    def ask(self, question: LiteralString) -> tuple[Any, ...]:
        return self.all(question)[0]

    def all(self, question: LiteralString, *values: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(question, values).fetchall()


def assert_on_schedule(shell: Shell, queue: str) -> None:
    question: LiteralString = (
        "select (scheduled.detail ->> 'delay_ms')::int, (returned.detail ->> 'drift_ms')::int "
        "from transition as scheduled join transition as returned using (retry_id, round) "
        "join retry on retry.id = retry_id where scheduled.state = 'scheduled' and returned.state = 'returned' "
        "and retry.queue = %s order by scheduled.round"
    )
    wait_for(lambda: len(shell.all(question, queue)) >= len(DELAYS_MS), what="every return to be recorded")
    rounds = shell.all(question, queue)
    for (delay, drift), expected in zip(rounds, DELAYS_MS, strict=True):
        assert expected <= delay <= expected + JITTER_MS, rounds
        assert drift >= 0, f"early: {rounds}"

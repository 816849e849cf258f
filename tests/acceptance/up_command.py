"""`tarry up` as a process, and what a person would copy from its output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness.waiting import wait_for
from tests.harness.wanted import missing

TARRY = [sys.executable, "-m", "tarry"]
ADDRESSES = ("RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL", "BROKER")
READY = "Ctrl-C ends it all"


def plain_environment() -> dict[str, str]:
    """The environment without the address of any broker or database."""
    return {name: value for name, value in os.environ.items() if name not in ADDRESSES}


class Running:
    """A process, and when it said what."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[tuple[float, str]] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append((time.monotonic(), line.rstrip()))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.said)

    @property
    def attempts(self) -> list[tuple[float, str]]:
        return [(at, line) for at, line in self.said if re.match(r"attempt \d b", line)]

    @property
    def exports(self) -> dict[str, str]:
        """The variables that a shell would have after its lines that begin with `export` were pasted into it."""
        lines = re.findall(r"(?m)^\s*(export \S.*)$", self.text)
        return dict(word.split("=", 1) for line in lines for word in shlex.split(line)[1:])

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._listener.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[Running]:
    made = Running(command, environment, folder)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def up(
    folder: Path, series: str | None, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """`tarry up` with its data in `folder`/up, once it is ready."""
    chosen = ["--series", series] if series else []
    command = [*TARRY, "up", *chosen, "--data-dir", str(folder / "up"), *options]
    with running(command, plain_environment() | dict(environment or {}), folder) as made:

        def is_up() -> bool:
            return READY in made.text or made.process.poll() is not None

        wait_for(is_up, deadline=120, what="tarry up to be ready")
        if made.process.poll() is not None and "There is no way to get RabbitMQ" in made.text:
            missing(f"`tarry up` did not start here: {made.text[-500:]}", series)
        assert made.process.poll() is None, made.text
        yield made

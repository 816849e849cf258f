"""`tarry up` as a process, and what a person would copy from its output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.cli import TARRY
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for
from tests.support.wanted import missing

ADDRESSES = ("RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL", "BROKER")
READY = "Ctrl-C stops everything"


def plain_environment() -> dict[str, str]:
    """The environment without the address of any broker or database."""
    return {name: value for name, value in os.environ.items() if name not in ADDRESSES}


def objects_on(vhost: Vhost) -> list[str]:
    """Every queue, policy and exchange that is not the broker's own."""
    queues, policies = vhost.api("queues/{vhost}"), vhost.api("policies/{vhost}")
    exchanges = [one for one in vhost.api("exchanges/{vhost}") if one["name"] and not one["name"].startswith("amq.")]
    return [one["name"] for one in [*queues, *policies, *exchanges]]


class Running:
    """A process, and what it said."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.said)

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
        try:
            yield made
        except BaseException as failure:
            failure.add_note(f"tarry up (exit code {made.process.poll()}) said:\n{made.text[-4_000:]}")
            for log in (folder / "up").rglob("*.log"):
                failure.add_note(f"the end of {log}:\n{log.read_text(errors='replace')[-4_000:]}")
            raise

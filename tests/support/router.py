"""`tarry serve` as a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support import forking
from tests.support.cli import TARRY
from tests.support.installation import Installation
from tests.support.waiting import wait_for

IN_TIME = 20
"""Seconds. A router ends within ten; the rest is for a busy machine to start and end processes."""
START = 120
"""Seconds. A busy machine may need a minute for a start that usually takes three seconds."""
SERVE = [*TARRY, "serve"]


@dataclass
class Router:
    """A running `tarry serve`."""

    process: forking.Process
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @cached_property
    def port(self) -> int:
        """Read once: a log can be long."""
        wait_for(lambda: self.logged("started") or not self.running, deadline=START, what="the router to log its port")
        started = self.logged("started")
        assert started, f"the router ended: {self.log.read_text()[-2000:]}"
        return int(started[0]["http"].rpartition(":")[2])

    def lines(self) -> list[dict[str, Any]]:
        whole = [line for line in self.log.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
        return [json.loads(line) for line in whole if line.startswith("{")]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines whose event contains this text."""
        return [line for line in self.lines() if event in line["event"]]

    def wait_logged(self, event: str, deadline: float = 30) -> dict[str, Any]:
        """The last such line, when there is one."""
        found = wait_for(lambda: self.logged(event), deadline=deadline, what=f"the router to log {event!r}")
        return found[-1]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            assert self.running, f"the router ended: {self.log.read_text()[-2000:]}"
            raise

    def ready(self) -> tuple[int, list[str]]:
        try:
            status, text = self.get("/readyz")
        except urllib.error.URLError:  # it has logged its port, and does not listen yet
            return 0, []
        return status, json.loads(text)["reasons"]

    def wait_ready(self, deadline: float = START) -> Router:
        wait_for(lambda: self.ready() == (200, []), deadline=deadline, what="the router to be ready")
        return self

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples with these labels; 0 if there is none."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))

    def stop(self) -> float:
        """Sends SIGTERM and returns the seconds until the process ended."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - started

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def start_router(installation: Installation, **settings: str) -> Router:
    """Forked from a process with the imports done; `settings` change the installation's own."""
    log = installation.folder / f"router-{len(list(installation.folder.glob('router-*.log')))}.log"
    return Router(forking.start(["serve"], os.environ | installation.environment | settings, log), log)


def spawn_router(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Router:
    """A new process, for commands that differ from `tarry serve` and for chaos."""
    with log.open("wb") as file:
        return Router(subprocess.Popen(command, env=os.environ | environment, stdout=file, stderr=file), log)


@contextlib.contextmanager
def routers(installation: Installation) -> Iterator[Callable[..., Router]]:
    """A function that starts a router, with settings that differ from the installation's own. All end here."""
    started: list[Router] = []

    def start(**settings: str) -> Router:
        started.append(start_router(installation, **settings))
        return started[-1]

    try:
        yield start
    finally:
        for router in started:
            if router.running:
                router.kill()

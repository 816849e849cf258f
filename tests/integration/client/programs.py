"""The clients of other languages: their conformance programs, driven by lines of JSON (clients/README.md)."""

from __future__ import annotations

import base64
import datetime as dt
import json
import subprocess
import threading
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

from tarry.client import Attempt, Options
from tests.integration.client.adapters import ADAPTERS, PREFETCH, Consumer
from tests.integration.client.failures import FromHeader, Masked, broken, failure_of
from tests.support import runtimes

WITHOUT_OPTIONS = Options()


class Program(Consumer):
    """A consumer in another process. Each of its deliveries is handled here, and answered."""

    process: subprocess.Popen[str]

    @staticmethod
    @abstractmethod
    def command() -> list[str]:
        """How it is started."""

    def run(self) -> None:
        self._telling = threading.Lock()
        self.process = SPARE.pop(type(self)) if type(self) in SPARE else self._start()
        with ThreadPoolExecutor(PREFETCH) as handlers:
            self._tell(
                do="consume",
                url=self.url,
                queue=self.queue,
                prefetch=PREFETCH,
                options=options_of(self.options or WITHOUT_OPTIONS),
                suppress=self.suppress,
            )
            self._listen(handlers)
        SPARE[type(self)] = self.process

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self) -> None:
        super().stop()
        if self.problem is None:
            self._tell(do="stop")

    def _listen(self, handlers: ThreadPoolExecutor) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.connections += "consuming" in told
            if "delivery" in told:
                handlers.submit(self._deliver, told)
            if "stopped" in told:
                return
        raise AssertionError(f"{self.command()} ended by itself")

    def _deliver(self, told: dict[str, Any]) -> None:
        failure = None
        try:
            self.handle(attempt_in(told["attempt"]), base64.b64decode(told["body"]))
        except Exception as error:  # noqa: BLE001 - the handler's failure is what is told
            failure = failure_of(error)
        self._tell(do="settle", delivery=told["delivery"], failure=failure)

    def _tell(self, **line: Any) -> None:
        assert self.process.stdin is not None
        with self._telling:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()


SPARE: dict[type[Program], subprocess.Popen[str]] = {}
"""Programs that wait for the next test: a virtual machine takes a while to start."""


def end_programs() -> None:
    for process in SPARE.values():
        with process:
            assert process.stdin is not None
            process.stdin.close()  # which ends it
    SPARE.clear()


class Node(Program):
    @staticmethod
    def command() -> list[str]:
        return ["node", str(runtimes.node_client() / "test" / "conformance.js")]


class Java(Program):
    @staticmethod
    def command() -> list[str]:
        return ["java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", runtimes.java_classpath(), "Conformance"]


def attempt_in(told: dict[str, Any]) -> Attempt:
    """As the program read it. What it computes from that must be what the Python client would compute."""
    attempt = Attempt(
        told["queue"],
        told.get("message_id"),
        told.get("retry_id"),
        told["round"],
        told["retry_count"],
        told.get("max_retries"),
        moment(told.get("due_ms")),
        moment(told.get("first_failed_ms")),
        moment(told.get("deadline_ms")),
    )
    assert (told["number"], told["is_last"]) == (attempt.number, attempt.is_last)
    return attempt


def moment(ms: int | None) -> dt.datetime | None:
    return None if ms is None else dt.datetime.fromtimestamp(ms / 1_000, dt.UTC)


def options_of(options: Options) -> dict[str, Any]:
    """Those that differ from the defaults, in words that every language has."""
    told: dict[str, Any] = {}
    for one in fields(options):
        value = getattr(options, one.name)
        match value:
            case FromHeader():
                told["owner_header"] = value.name
            case Masked():
                told["redact"] = value.pattern
            case _ if value is broken:
                told[f"{one.name}_fails"] = True
            case _ if one.name == "classes":
                told["classes"] = {kind.__name__: entry for kind, entry in value._table.items()}
            case _ if one.name != "names" and value != getattr(WITHOUT_OPTIONS, one.name):
                told[one.name] = value
    return told


PROGRAMS: dict[str, type[Consumer]] = {"node": Node, "java": Java}
CLIENTS: dict[str, type[Consumer]] = ADAPTERS | PROGRAMS


def available(client: type[Consumer]) -> type[Consumer]:
    """Skips the test if the runtime of the client is missing."""
    if issubclass(client, Program):
        client.command()
    return client

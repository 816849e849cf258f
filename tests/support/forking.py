"""`tarry` processes from a fork server that has done the imports.

Starting Python and importing the service takes a second of a processor, and a run does it hundreds of times. A
forked process has its own memory, connections and signals, can be killed, and measures coverage where the run does.
Chaos starts processes without the fork server; with TARRY_TESTS_FORK=off every test does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tests.support.hurry import HURRY, hurry
from tests.support.waiting import PAUSE

PRELOADED = ("tarry.cli.serve", "tarry.cli.start", "tarry.web.app")


class Process(Protocol):
    """What tests do with a process; `subprocess.Popen` can do it too."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
    """Starts `tarry ARGUMENTS`. Its output is appended to a file, which exists when this returns."""
    log.open("ab").close()
    if os.environ.get("TARRY_TESTS_FORK") == "off":
        with log.open("ab") as file:
            command = [sys.executable, "-m", "tarry", *arguments]
            return subprocess.Popen(command, env=dict(environment), stdout=file, stderr=file)
    return ForkedProcess(server(), server().fork(arguments, environment, log))


class ForkedProcess:
    """A child of the fork server, which reports its exit code."""

    def __init__(self, parent: ForkServer, pid: int) -> None:
        self._parent = parent
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask({"poll": self.pid})["returncode"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(["tarry"], timeout or 0)
            time.sleep(PAUSE)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The test's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, question: Mapping[str, object]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        wanted = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "log": str(log),
            "folder": str(Path.cwd()),
        }
        return int(self.ask(wanted)["pid"])

    def close(self) -> None:
        """The fork server ends when its input is closed; its children end with it, see `_become`."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(10)


@cache
def server() -> ForkServer:
    """One for each process that runs tests."""
    return ForkServer()


def _serve() -> None:
    for name in PRELOADED:
        __import__(name)
    parent = os.getpid()
    ended: dict[int, int] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            with contextlib.suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    ended[found[0]] = os.waitstatus_to_exitcode(found[1])
            answer: dict[str, int | None] = {"returncode": ended.get(question["poll"])}
        else:
            pid = os.fork()
            if pid == 0:
                _become(question, parent)
            ended.pop(pid, None)  # of an earlier process with the same number
            answer = {"pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _become(wanted: Mapping[str, Any], parent: int) -> NoReturn:
    """Turns the forked child into the wanted process."""
    from tarry.__main__ import run  # noqa: PLC0415  imported by now

    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    _die_with(parent)
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (1, 2):
        os.dup2(log, target)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["tarry", *wanted["arguments"]]
    code = 1
    try:
        if HURRY in os.environ:
            hurry()
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  as the interpreter does it
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        _save_coverage()
        os._exit(code)


def _save_coverage() -> None:
    """What the fork server measures, its children measure too; the data of each goes to a file of its own."""
    if "coverage" in sys.modules and (measured := sys.modules["coverage"].Coverage.current()):
        measured.save()


def _die_with(parent: int) -> None:
    """The kernel kills this process when the fork server ends."""
    import ctypes  # noqa: PLC0415  only where it is needed

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _serve()

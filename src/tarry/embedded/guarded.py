"""The owner's side of a guardian: a service that can be started, stopped, killed, paused, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tarry.embedded import guardian
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class GuardedProgram:
    """The program that a guardian runs; `argv[0]` is a full path."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str
    uid: int | None = None
    gid: int | None = None
    stop_signal: int = signal.SIGTERM
    grace: float = 20.0


class Guarded:
    """Call `close()` when done; if that never happens, the guardian ends the service."""

    def __init__(self, *, throwaway: Sequence[Path] = (), hold_open: Sequence[int] = ()) -> None:
        self.pid: int | None = None
        self.exit_code: int | None = None
        self._started: int | None = None
        """The process of the last start, which may have ended since."""
        self._service: GuardedProgram | None = None
        self._unread = b""
        self._lock = threading.RLock()
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guardian.__file__)), *map(str, throwaway)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(hold_open),
            start_new_session=True,  # Ctrl-C in a terminal must reach only the owner
            cwd="/",
            env={},  # it needs none of our variables, and starts faster
        )

    def start(self, service: GuardedProgram) -> int:
        with self._lock:
            if self.running:
                raise EmbeddedError(f"{service.argv[0]} is already running as process {self.pid}; stop it first.")
            self._service, self.exit_code, self._started = service, None, None
            self._order({"do": "start", **asdict(service)})
            process = self._wait_started()
            if process is None:
                raise EmbeddedError(f"{service.argv[0]} was not started: its guardian process has ended. Try again.")
            return process

    def stop(self) -> None:
        """Sends the stop signal, and SIGKILL if the service does not end in time."""
        with self._lock:
            if self._service is not None and self.running:
                self._order({"do": "stop", "signal": self._service.stop_signal, "grace": self._service.grace})
                self._listen_until(lambda: self.pid is None, patience=self._service.grace + 15)

    def kill(self) -> None:
        """Sends SIGKILL, like a crash; returns once the service and its descendants are gone."""
        with self._lock:
            if self.running:
                self._order({"do": "stop", "signal": signal.SIGKILL, "grace": 0})
                self._listen_until(lambda: self.pid is None, patience=15)

    def pause(self) -> None:
        self._signal_all(signal.SIGSTOP)

    def unpause(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        with self._lock:
            if self.running and self.pid is not None:
                for pid in (self.pid, *guardian.descendants(self.pid)):
                    guardian.send(pid, number)

    @property
    def running(self) -> bool:
        with self._lock:
            self._hear(0)
            return self.pid is not None

    @property
    def guardian_pid(self) -> int:
        return self._guardian.pid

    def close(self) -> None:
        """Ends the service and the guardian; the service is stopped gracefully unless its data is to be deleted."""
        with self._lock:
            stdin, stdout = self._streams()
            if not stdin.closed:
                with contextlib.suppress(BrokenPipeError):  # the guardian has already ended
                    stdin.close()
                self._guardian.wait()
                stdout.close()
                self.pid = None

    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        stdin, stdout = self._guardian.stdin, self._guardian.stdout
        if stdin is None or stdout is None:
            raise AssertionError
        return stdin, stdout

    def _order(self, order: Mapping[str, object]) -> None:
        stdin, _ = self._streams()
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):
            self.pid = None

    def _wait_started(self) -> int | None:
        self._listen_until(lambda: self._started is not None, patience=10)
        return self._started

    def _listen_until(self, done: Callable[[], bool], *, patience: float) -> None:
        deadline = time.monotonic() + patience
        while not done() and time.monotonic() < deadline:
            if not self._hear(0.2):
                return

    def _hear(self, seconds: float) -> bool:
        """Reads events from the guardian; False once it has ended."""
        _, stdout = self._streams()
        while not stdout.closed and select.select([stdout], [], [], seconds)[0]:
            chunk = os.read(stdout.fileno(), 65536)
            if not chunk:
                self.pid = None
                return False
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                self._note(json.loads(line))
            seconds = 0
        return not stdout.closed

    def _note(self, event: Mapping[str, int]) -> None:
        self.pid = event.get("started")
        self._started = self.pid or self._started
        self.exit_code = event.get("exited")

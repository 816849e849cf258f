"""A small process that keeps one service from outliving its owner.

Runs as a file with only the standard library, so that it starts in milliseconds. It reads commands from standard input,
one JSON object per line, and answers the same way on standard output:

    {"do": "start", "argv": [...], "env": {...}, "cwd": ..., "log": ..., "uid": ..., "gid": ...}  ->  {"started": pid}
    {"do": "stop", "signal": 15, "grace": 20}                                                     ->  {"exited": code}

The `start` command also has `stop_signal` and `grace`: how to end the service when the owner ends.

The end of its input means that the owner has ended, for whatever reason, including kill -9. The guardian then ends the
service with all its descendants, removes the folders named on its command line, and exits. If the guardian itself is
killed, the kernel ends the service (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
TICK = 0.5
KILL_PATIENCE = 10.0


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(ancestor: int) -> list[int]:
    """All running processes below `ancestor`, without zombies. Empty if there is no /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):  # the process ended meanwhile
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found, frontier = [], {ancestor}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found += sorted(frontier)
    return found


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def become(order: dict[str, Any], guardian: int) -> None:
    """Turns the forked child into the service.

    Credentials are dropped before the parent-death signal is set, because dropping them clears it.
    """
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, target)
    os.chdir(order["cwd"])
    if order.get("uid") is not None:
        os.setgroups([])
        os.setgid(order["gid"])
        os.setuid(order["uid"])
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:  # the guardian died before the death signal was set
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (*HEARD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    os.execve(order["argv"][0], order["argv"], order["env"])  # noqa: S606  a shell would be one more process to guard


class Guardian:
    def __init__(self, throwaway: list[Path]) -> None:
        self.throwaway = throwaway
        self.owner = os.getppid()
        self.service: int | None = None
        self.group = 0
        self.last_stop: tuple[int, float] = (signal.SIGTERM, 20.0)
        self.ending = False
        self.unread = b""
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the service become children of this process

    def run(self) -> None:
        wake = self.listen_to_signals()
        while not self.ending and os.getppid() == self.owner:
            ready, _, _ = select.select([0, wake], [], [], TICK)
            if wake in ready:
                os.read(wake, 512)
            if 0 in ready:
                self.take_orders()
            self.reap()
        self.end_service(*((signal.SIGKILL, 0.0) if self.throwaway else self.last_stop))
        for folder in self.throwaway:
            remove(folder)

    def listen_to_signals(self) -> int:
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "ending", True))
        return wake

    def take_orders(self) -> None:
        chunk = os.read(0, 1 << 20)
        self.ending = self.ending or not chunk
        *lines, self.unread = (self.unread + chunk).split(b"\n")
        for line in lines:
            self.obey(json.loads(line))

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "stop":
            self.end_service(order["signal"], order["grace"])
            return
        self.last_stop = (order["stop_signal"], order["grace"])
        guardian = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)  # until the child has reset its handlers and its pid is known
        self.service = os.fork()
        if self.service == 0:
            try:
                become(order, guardian)
            except OSError as problem:
                os.write(2, f"{order['argv'][0]}: {problem}\n".encode())
            os._exit(127)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        self.group = self.service
        self.tell({"started": self.service})

    def tell(self, event: dict[str, Any]) -> None:
        try:
            os.write(1, json.dumps(event).encode() + b"\n")
        except BrokenPipeError:  # the owner has ended; the end of input follows
            self.ending = True

    def reap(self) -> None:
        """Collects ended children.

        If the service itself has ended, kills what it left behind and then reports the exit.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.service:
                self.service = None
                self.kill_remains()
                self.tell({"exited": os.waitstatus_to_exitcode(status)})

    def end_service(self, number: int, grace: float) -> None:
        if self.service is None:
            return
        send(self.service, number)
        send(self.service, signal.SIGCONT)  # a paused service must receive the signal too
        if not self.gone_within(grace):
            self.kill_remains()
            self.gone_within(KILL_PATIENCE)

    def gone_within(self, seconds: float) -> bool:
        patience = time.monotonic() + seconds
        self.reap()
        while self.service is not None and time.monotonic() < patience:
            time.sleep(0.01)
            self.reap()
        return self.service is None

    def kill_remains(self) -> None:
        if self.service is not None:
            send(self.service, signal.SIGKILL)
        if sys.platform != "linux":  # no /proc to find descendants in, but most stay in the service's process group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)
        patience = time.monotonic() + KILL_PATIENCE
        while (rest := descendants(os.getpid())) and time.monotonic() < patience:
            for pid in rest:
                send(pid, signal.SIGKILL)
            time.sleep(0.01)


def remove(folder: Path) -> None:
    """Repeats the removal: a service of another guardian that is just ending may still write here."""
    patience = time.monotonic() + KILL_PATIENCE
    while folder.exists() and time.monotonic() < patience:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


if __name__ == "__main__":
    Guardian([Path(name) for name in sys.argv[1:]]).run()

"""Several routers from one command: `tarry serve --processes N`.

The parent starts N processes, each a whole router with an HTTP port of its own, and starts one again that ends. It
opens no connection itself. Each process is connected to the parent by a socket pair: the process sends `READY` on it,
and stops by itself when the parent has closed it, so a parent that is killed leaves no routers behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from tarry.tasks import sleep_unless

log = structlog.get_logger()

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds until a process is started again."""

SETTLED = 60.0
"""Seconds that a process must run before its next restart uses the shortest pause again."""

LAST_SECONDS = 20.0
"""A process that is asked to stop gets these seconds, of which it needs ten at most; then it is killed."""

KILLED = 1
"""The exit code of the parent if it had to kill a process."""

READY = b"R"

PARENT_OPTION = "--parent"
"""The option of `tarry serve` that tells a process about its parent; see `Parent.parse`."""

PROCESS_ENDED = "router process ended, starting it again"
CANNOT_START = "router process cannot start, stopping all"
NOT_STARTED = "router process not started, trying again"
NOT_ENDED = "router process did not stop in time, killed"

CHUNK = 1 << 16

STDERR = 2


@dataclass(frozen=True, slots=True)
class Command:
    """How one process is started."""

    number: int
    """Of the process, from 1."""
    arguments: Sequence[str]
    """Of Python."""
    environment: Mapping[str, str]

    async def start(self) -> RouterProcess:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *self.arguments,
                    PARENT_OPTION,
                    f"{self.number}:{theirs.fileno()}",
                    env={**self.environment},
                    stdin=asyncio.subprocess.DEVNULL,
                    # Lines of several processes must not mix in a pipe; a terminal takes each write whole.
                    stderr=None if sys.stderr.isatty() else PIPE,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            ours.close()
            raise
        return RouterProcess(process, ours)


@dataclass(slots=True)
class RouterProcess:
    """A process that runs."""

    process: Process
    socket: socket.socket

    async def ended(self, write: Callable[[bytes], None]) -> int:
        """Waits until it has ended, and passes on the lines of its log meanwhile; its exit code, or minus a signal."""
        if self.process.stderr is not None:
            await pass_on(self.process.stderr, write)
        return await self.process.wait()

    def is_ready(self) -> bool:
        """Whether it has ever been ready."""
        try:
            return self.socket.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == READY
        except OSError:
            return False

    def send(self, sign: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(sign)


async def pass_on(log_lines: asyncio.StreamReader, write: Callable[[bytes], None]) -> None:
    """Writes whole lines, as many at a time as there are."""
    rest = b""
    while chunk := await log_lines.read(CHUNK):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            write(whole + newline)
    if rest:
        write(rest + b"\n")


def write_to_stderr(lines: bytes) -> None:
    """If nobody reads the log any more, the routers go on."""
    with suppress(OSError):
        sys.stderr.buffer.write(lines)
        sys.stderr.buffer.flush()


@dataclass(slots=True)
class Processes:
    """Runs one process for each command until it is told to stop."""

    commands: Sequence[Command]
    write: Callable[[bytes], None] = write_to_stderr
    first_pause: float = FIRST_PAUSE
    last_seconds: float = LAST_SECONDS
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _running: dict[int, RouterProcess] = field(default_factory=dict)
    _exit_code: int = 0

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT, or until a process cannot start; returns the exit code."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        tasks = {asyncio.create_task(self._keep(command)) for command in self.commands}
        ended = asyncio.create_task(self.stop.wait())
        await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        self.stop.set()
        self._send(signal.SIGTERM)
        _, late = await asyncio.wait(tasks, timeout=self.last_seconds)
        for number, one in self._running.items():
            log.error(NOT_ENDED, process=number, pid=one.process.pid)
            one.send(signal.SIGKILL)
            self._exit_code = self._exit_code or KILLED
        if late:
            await asyncio.wait(late)
        for task in tasks:
            task.result()
        return self._exit_code

    def _send(self, sign: signal.Signals) -> None:
        for one in list(self._running.values()):
            one.send(sign)

    async def _keep(self, command: Command) -> None:
        """Runs one process, and starts it again when it ends.

        One that was never ready and ends with an exit code has said what is wrong, and would say it again: then all
        end, with that code. One that was ready before, or that was killed, is started again.
        """
        clock, number = asyncio.get_running_loop().time, command.number
        pause, has_been_ready = self.first_pause, False
        while not self.stop.is_set():
            began = clock()
            try:
                one = await command.start()
            except OSError as error:
                log.warning(NOT_STARTED, process=number, reason=str(error), pause=pause)
            else:
                code, was_ready = await self._until_ended(number, one)
                has_been_ready = has_been_ready or was_ready
                if self.stop.is_set():
                    return
                about = {"process": number, "pid": one.process.pid, **_how(code)}
                if code > 0 and not has_been_ready:
                    log.error(CANNOT_START, **about)
                    self._exit_code = code
                    return
                if clock() - began > SETTLED:
                    pause = self.first_pause
                log.error(PROCESS_ENDED, **about, pause=pause)
            await sleep_unless(self.stop, pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _until_ended(self, number: int, one: RouterProcess) -> tuple[int, bool]:
        """Its exit code, and whether it was ready."""
        self._running[number] = one
        try:
            if self.stop.is_set():  # since it began to start
                one.send(signal.SIGTERM)
            return await one.ended(self.write), one.is_ready()
        finally:
            del self._running[number]
            one.socket.close()


def _how(code: int) -> dict[str, object]:
    """Its exit code, or the signal that killed it."""
    return {"exit_code": code} if code >= 0 else {"signal": signal.Signals(-code).name}


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent, as one of its processes sees it."""

    number: int
    """Of this process, from 1."""
    fd: int

    @classmethod
    def parse(cls, text: str) -> Parent:
        """`NUMBER:FD`."""
        number, _, fd = text.partition(":")
        return cls(int(number), int(fd))

    def watch(self, stop: asyncio.Event) -> None:
        """Sets `stop` when the parent is gone."""
        os.set_inheritable(self.fd, False)
        os.set_blocking(self.fd, False)
        loop = asyncio.get_running_loop()

        def look() -> None:
            if self._is_gone():
                loop.remove_reader(self.fd)
                _write_log_nowhere()
                stop.set()

        loop.add_reader(self.fd, look)

    def _is_gone(self) -> bool:
        """Reading fails, instead of finding the end, if the parent has not read what was sent to it."""
        try:
            return not os.read(self.fd, 1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def tell_ready(self) -> None:
        with suppress(OSError):  # it is gone
            os.write(self.fd, READY)


def _write_log_nowhere() -> None:
    """The parent passed on the lines of the log: without it, each of them would be an error."""
    if stat.S_ISFIFO(os.fstat(STDERR).st_mode):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, STDERR)
        os.close(nowhere)

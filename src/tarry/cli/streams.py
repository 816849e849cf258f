"""Arguments and streams of the process: invalid UTF-8, a full disk, a closed pipe, an ASCII terminal."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO, cast

from tarry.errors import OutputError, SettingsError

CLOSED_PIPE = 141
"""The exit code that a shell reports for a program ended by SIGPIPE."""

IN_ASCII = {"✓": "+", "✔": "+", "✗": "x", "✘": "x", "…": "...", "·": "-", "‖": "=", "→": "->", "←": "<-", "×": "x"}
"""Replacements for the characters beyond ASCII that tarry writes; others are escaped if the encoding lacks them."""

REPLACED = "tarry.replaced"


class Stdout(io.TextIOWrapper):
    """A failed write raises OutputError, which is reported like other errors. A closed pipe ends the process."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            raise AssertionError from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        discard(self)
        if error.errno == errno.EPIPE:
            raise SystemExit(CLOSED_PIPE) from None
        raise OutputError(f"The output cannot be written: {error.strerror}.") from error


class Stderr(io.TextIOWrapper):
    """Notes and logs that cannot be written are dropped; the command continues."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def set_up_streams() -> None:
    codecs.register_error(REPLACED, _replacement)
    sys.stdout = _wrapped(sys.stdout, Stdout)
    sys.stderr = _wrapped(sys.stderr, Stderr)


def close_streams() -> None:
    """Python flushes them at exit, and would report an error again."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            try:
                stream.buffer.flush()
            except OSError:
                discard(stream)


def discard(stream: TextIO) -> None:
    """Drops its buffer and everything written to it later."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def read_arguments(given: Sequence[str]) -> list[str]:
    """Decoded as UTF-8 in every locale. Raises SettingsError if they are not valid."""
    found = []
    for argument in given:
        raw = os.fsencode(argument)
        try:
            found.append(raw.decode())
        except UnicodeDecodeError:
            shown = raw.decode("ascii", "backslashreplace")
            raise SettingsError(f"An argument is not valid UTF-8: {shown}") from None
    return found


def read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"stdin is not valid UTF-8, at byte {error.start}.") from None


def _wrapped(stream: TextIO | None, kind: type[io.TextIOWrapper]) -> TextIO:
    """The same file; None where the process was started without one."""
    if not isinstance(stream, io.TextIOWrapper):
        return cast("TextIO", stream)
    return kind(stream.buffer, encoding=stream.encoding, errors=REPLACED, line_buffering=stream.line_buffering)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(IN_ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in text), error.end


SIGNALLED = 128
"""The exit code of a command ended by a signal is this plus the signal number."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived."""


def exit_code(stopped: KeyboardInterrupt) -> int:
    return SIGNALLED + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated inside."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def terminable_task() -> Iterator[None]:
    """SIGTERM cancels the current task, and raises Terminated once that is over. The exception of `terminable` could
    end an event loop between two statements that belong together.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - it runs in one
    stopped: list[bool] = []

    def stop() -> None:
        stopped.append(True)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        yield
    except asyncio.CancelledError:
        if stopped:
            raise Terminated from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated

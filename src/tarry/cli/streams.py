"""Arguments and streams of the process: any bytes in, and out into a full disk, a closed pipe or an ASCII terminal."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO, cast

from tarry.errors import OutputError, SettingsError

CLOSED_PIPE = 141
"""The exit code that a shell reports of a program that SIGPIPE ended."""

IN_ASCII = {"✓": "+", "✔": "+", "✗": "x", "✘": "x", "…": "...", "·": "-", "‖": "=", "→": "->", "←": "<-", "×": "x"}
"""What tarry itself writes beyond ASCII; all else is escaped where the encoding does not have it."""

REPLACED = "tarry.replaced"


class Stdout(io.TextIOWrapper):
    """A failed write is an error of ours, so that it is told like any other. A closed pipe ends the process."""

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
    """Notes and logs that cannot be written are dropped: the work goes on."""

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
    """Python itself flushes them at its end, and would complain of what was told already."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            try:
                stream.buffer.flush()
            except OSError:
                discard(stream)


def discard(stream: TextIO) -> None:
    """What is in its buffer, and whatever is still written to it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def read_arguments(given: Sequence[str]) -> list[str]:
    """As UTF-8, whatever the locale. Raises SettingsError where they are not."""
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

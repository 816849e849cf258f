"""A program on a terminal of its own: what it shows, keys, the size, and the state in which it leaves the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from typing import TYPE_CHECKING, Any, Self

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

HOME = "\x1b[H"
"""Moves the cursor to the first line: a program that redraws its screen begins with it."""

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

END = "\x1b[999m"
"""Written after the end of the program; shown as nothing."""

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07|\x1b[=>]|[\r\x07]")


class PseudoTerminal:
    """Use as a context manager. The program is ended with the block if it still runs."""

    def __init__(
        self, program: Sequence[str], environment: Mapping[str, str], *, rows: int = 24, columns: int = 80
    ) -> None:
        self.ours, self.its = pty.openpty()
        self.resize(rows, columns)
        self.modes = termios.tcgetattr(self.its)
        self.shown = bytearray()
        given = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            program,
            stdin=self.its,
            stdout=self.its,
            stderr=self.its,
            env=given | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | dict(environment),
            start_new_session=True,
            preexec_fn=_use_as_terminal,  # noqa: PLW1509  a child of this process, which does nothing else before exec
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=60)
        os.close(self.its)
        self.reader.join(timeout=60)
        os.close(self.ours)

    def resize(self, rows: int, columns: int) -> None:
        """The kernel tells the program."""
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    @property
    def text(self) -> str:
        """Everything that was written."""
        return self.shown.decode(errors="replace")

    @property
    def plain(self) -> str:
        """Without colours and movements."""
        return CONTROL.sub("", self.text)

    @property
    def screen(self) -> list[str]:
        """The lines of the last complete screen of a program that redraws it."""
        parts = self.text.split(HOME)
        return [line.rstrip() for line in CONTROL.sub("", parts[-2] if len(parts) > 1 else "").split("\n")]

    def wait_screen(self, text: str, *, without: str = "\0") -> list[str]:
        """The first complete screen with this text, and without the other one."""

        def found() -> list[str]:
            now = self.screen
            whole = "\n".join(now)
            return now if text in whole and without not in whole else []

        return wait_for(found, deadline=120, what=f"{text!r} on the screen")

    def wait_text(self, text: str) -> None:
        wait_for(lambda: text in self.plain, deadline=120, what=f"{text!r} in {self.plain!r}")

    def wait_exit(self) -> int:
        """Its exit code, once all that it wrote has been read."""
        code = self.process.wait(timeout=120)
        os.write(self.its, END.encode())
        wait_for(lambda: END in self.text, what="the end of its output")
        return code

    @property
    def is_restored(self) -> bool:
        """Whether the modes are as before, the cursor is visible, and the screen of the shell is back."""
        text = self.text
        if text.rfind(LEAVE_SCREEN) < text.rfind(ENTER_SCREEN) or text.rfind(SHOW_CURSOR) < text.rfind(HIDE_CURSOR):
            return False
        return _compared(termios.tcgetattr(self.its)) == _compared(self.modes)

    def _read(self) -> None:
        """Until the program and this object have closed the other end."""
        with contextlib.suppress(OSError):
            while some := os.read(self.ours, 1 << 16):
                self.shown.extend(some)


def _compared(modes: list[Any]) -> list[Any]:
    return [modes[:6], list(modes[6])]


def _use_as_terminal() -> None:
    """Ctrl-C reaches the program only through the terminal of its session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

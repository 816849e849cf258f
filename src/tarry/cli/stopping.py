"""Being told to stop: SIGTERM ends a command as Ctrl-C does, so that it can say what it has done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALLED = 128
"""A shell's exit code for a command that a signal ended is this plus the number of the signal."""


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


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated

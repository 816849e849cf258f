"""Calls something so many times, as fast as it goes or steadily. Standard library only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

STEP = 0.01


def paced(call: Callable[[], object], count: int, per_second: int) -> None:
    started, sent = time.monotonic(), 0
    while sent < count:
        due = min(int((time.monotonic() - started) * per_second) + 1, count) if per_second else count
        for _ in range(due - sent):
            call()
        sent = due
        if per_second:
            time.sleep(STEP)


def arguments() -> tuple[int, str, int]:
    """COUNT, a text of BODY_BYTES, PER_SECOND, after the word `send`."""
    count, body, per_second = map(int, sys.argv[2:5])
    return count, "x" * body, per_second

"""Wait for an event, never for a duration."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PAUSE = 0.02


def wait_for(predicate: Callable[[], T], *, deadline: float = 30, what: str | None = None) -> T:
    """The first true value `predicate` returns; a failure says what was waited for and what was seen last."""
    end = time.monotonic() + deadline
    while not (value := predicate()):
        if time.monotonic() > end:
            wanted = what or getattr(predicate, "__name__", repr(predicate))
            raise AssertionError(f"waited {deadline:g} s for {wanted}, last seen: {value!r}")
        time.sleep(PAUSE)
    return value


def eventually(check: Callable[[], T], *, deadline: float = 30) -> T:
    """Repeat a function full of asserts until it passes; after the deadline its own failure is the failure."""
    end = time.monotonic() + deadline
    while True:
        try:
            return check()
        except AssertionError as failure:
            if time.monotonic() > end:
                failure.add_note(f"still so after {deadline:g} s")
                raise
        time.sleep(PAUSE)

"""Wait for an event, never for a duration."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
PAUSE = 0.02
LONGEST_PAUSE = 0.25


def wait_for(predicate: Callable[[], T], *, deadline: float = 30, what: str | None = None) -> T:
    """The first true value `predicate` returns; a failure says what was waited for and what was seen last."""
    turns = _turns(deadline)
    while not (value := predicate()):
        if not next(turns):
            wanted = what or getattr(predicate, "__name__", repr(predicate))
            raise AssertionError(f"waited {deadline:g} s for {wanted}, last seen: {value!r}")
    return value


def eventually(check: Callable[[], T], *, deadline: float = 30) -> T:
    """Repeat a function full of asserts until it passes; after the deadline its own failure is the failure."""
    turns = _turns(deadline)
    while True:
        try:
            return check()
        except AssertionError as failure:
            if not next(turns):
                failure.add_note(f"still so after {deadline:g} s")
                raise


def _turns(deadline: float) -> Iterator[bool]:
    """Pauses after each question, and says whether to ask once more.

    Questions that take long are asked less often, and so are those of a long wait: what is waited for needs the
    processor more than the question does.
    """
    began = asked = time.monotonic()
    while (now := time.monotonic()) <= began + deadline:
        time.sleep(min(max(PAUSE, 2 * (now - asked), (now - began) / 20), LONGEST_PAUSE))
        asked = time.monotonic()
        yield True
    yield False

"""A router whose tap is away: it moves requests, and leaves the copies of what returned in their queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tarry.__main__ import run
from tarry.router.parts import Parts


def no_listeners(_: Parts) -> dict[str, Callable[[], Awaitable[str]]]:
    return {}


if __name__ == "__main__":
    Parts.listeners = no_listeners  # type: ignore[assignment,method-assign]
    run()

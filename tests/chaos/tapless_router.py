"""A router whose tap is away: it moves requests, and leaves the copies of what returned in their queue."""

from __future__ import annotations

from tarry.__main__ import run
from tarry.service import app
from tarry.service.tap import TapQueue


def no_taps(*_: object) -> tuple[TapQueue, ...]:
    return ()


if __name__ == "__main__":
    setattr(app, "make_taps", no_taps)  # noqa: B010 - the one thing that differs, and no export of that module
    run()

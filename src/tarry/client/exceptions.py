"""Exceptions that a handler raises to say more than "it failed"."""

from __future__ import annotations

from datetime import datetime, timedelta

Wait = float | timedelta | datetime
"""Seconds, a timedelta, or a point in time (a datetime with a time zone)."""


class RateLimited(Exception):  # noqa: N818 - a term of the contract, and not an error in the handler
    """A rate limit: retry later. With `retry_after` the retry waits that long and spends no attempt."""

    def __init__(self, reason: str = "rate limited", *, retry_after: Wait | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Final(Exception):  # noqa: N818 - as above
    """No retry would help. The message goes to review at once, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


def wait_ms(wait: Wait | None, now_ms: int) -> int | None:
    """The wait in whole milliseconds, rounded up; None if there is no wait, or if it has passed."""
    if wait is None:
        return None
    match wait:
        case datetime():
            ms = wait.timestamp() * 1_000 - now_ms
        case timedelta():
            ms = wait.total_seconds() * 1_000
        case _:
            ms = wait * 1_000
    return -int(-ms // 1) if ms > 0 else None

"""When a queue may be called empty, although nothing on the broker says so at one moment. Pure.

A quorum queue refuses `delete if-empty`; the count that AMQP gives leaves out what is being dead-lettered, and the
management API's count, which has it, is up to five seconds old. So a queue that nothing leads to any more is empty when
the management API has said so for long enough that at least one fresh count must be among its answers.
"""

from __future__ import annotations

from dataclasses import dataclass

POLL_SECONDS = 1.0

SETTLING_SECONDS = 12.0
"""Two counts' time and some: the first may have been taken before the queue was unbound."""


@dataclass(slots=True)
class Settling:
    """Feed it what is seen; it says when that is enough."""

    seconds: float = SETTLING_SECONDS
    _empty_since: float | None = None

    def observe(self, depth: int, now: float) -> bool:
        """True once the queue has been seen empty, and only empty, for long enough."""
        if depth:
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = now
        return now - self._empty_since >= self.seconds

"""Label values that stay few: a thousand queues must not blow up the scrape."""

from __future__ import annotations

OTHER = "other"
LAST_ATTEMPT = 10


class Labels:
    """The first so many values keep their names; the rest share one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


def attempt(number: int) -> str:
    """`1` … `10`, then `11+`."""
    return str(number) if number <= LAST_ATTEMPT else f"{LAST_ATTEMPT + 1}+"

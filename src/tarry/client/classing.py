"""Which class an error is of: a table that users extend. Where it says nothing, the policy's own rules decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from tarry.client.hints import busy
from tarry.client.signals import Final, RateLimited, wait_ms

ErrorClass = Literal["final", "retryable", "rate_limited"]

DEEPEST = 8
"""Causes that are looked at: an error may be wrapped, but not without end."""


class Verdict(NamedTuple):
    """What is known of an error; None leaves the class to the policy."""

    error_class: ErrorClass | None = None
    retry_after_ms: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing in it that the policy would not do by itself."""
        return self.error_class is None and self.retry_after_ms is None


PLAIN = Verdict()

Judge = Callable[[BaseException], Verdict | None]
"""For errors that must be looked into; None passes the question on."""

Table = Mapping[type[BaseException], ErrorClass | Judge]


class Classes:
    """An error's own type counts first, then its bases, nearest first; then what it was raised `from`."""

    def __init__(self, table: Table | None = None) -> None:
        self._table: dict[type[BaseException], ErrorClass | Judge] = dict(table or {})
        for kind, entry in self._table.items():
            if not callable(entry) and entry not in ("final", "retryable", "rate_limited"):
                raise ValueError(f"{kind.__name__} cannot be of the class {entry!r}: final, retryable or rate_limited")

    def judge(self, error: BaseException, now_ms: int) -> Verdict:
        """The first verdict along the chain of causes."""
        for one in _causes(error):
            verdict = self._look_up(one) or _look_into(one, now_ms)
            if verdict is not None:
                return verdict
        return PLAIN

    def _look_up(self, error: BaseException) -> Verdict | None:
        for kind in type(error).__mro__:
            entry = self._table.get(kind)
            found = entry(error) if callable(entry) else Verdict(entry) if entry is not None else None
            if found is not None:
                return found
        return None


def _look_into(error: BaseException, now_ms: int) -> Verdict | None:
    """What needs no table: our own signals, and answers of HTTP servers that are busy."""
    if isinstance(error, RateLimited):
        return Verdict("rate_limited", wait_ms(error.retry_after, now_ms))
    if isinstance(error, Final):
        return Verdict("final")
    found = busy(error, now_ms)
    return None if found is None else Verdict("rate_limited", found.retry_after_ms)


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    for _ in range(DEEPEST):
        if found is None:
            return
        yield found
        found = found.__cause__

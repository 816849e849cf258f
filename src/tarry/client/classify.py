"""Classifies errors by a table that users can extend. If the table has no entry, the rules of the policy decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from tarry.client.exceptions import Final, RateLimited, wait_ms
from tarry.client.hints import busy

ErrorClass = Literal["final", "retryable", "rate_limited"]

DEEPEST = 8
"""How many chained causes are examined; this limits the work for an endless chain."""


class Verdict(NamedTuple):
    """The class of an error and the requested wait. An `error_class` of None leaves the class to the policy."""

    error_class: ErrorClass | None = None
    retry_after_ms: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it adds nothing to what the policy would do by itself."""
        return self.error_class is None and self.retry_after_ms is None


PLAIN = Verdict()

Judge = Callable[[BaseException], Verdict | None]
"""For errors that have to be inspected. Returns None to leave the decision to the next entry."""

Table = Mapping[type[BaseException], ErrorClass | Judge]


class Classes:
    """Maps exception types to error classes.

    The error's own type is looked up first, then its base classes in method resolution order, then the exception that
    it was raised `from`.
    """

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
    """Errors that need no table: `RateLimited`, `Final`, and HTTP responses with 429 or 503."""
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

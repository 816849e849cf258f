"""Successes on their way to the audit, put together into few reports. Nothing here waits, sends or fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tarry.client.options import Options
from tarry.contract import headers as h
from tarry.contract.outcome import CONTENT_TYPE, MOST_OUTCOMES, report_of
from tarry.contract.properties import PERSISTENT, Properties

PROPERTIES = Properties(content_type=CONTENT_TYPE.encode(), delivery_mode=PERSISTENT)


class Outcomes:
    """Only messages that came back from tarry are told of: it has never heard of the others.

    `begin` is called with the first success after a report, and must see to it that `take` is called in time.
    """

    def __init__(self, options: Options, begin: Callable[[], None], full: Callable[[], None]) -> None:
        self._batch = options.report_batch if options.report else 0
        self._begin, self._full = begin, full
        self._rows: list[tuple[Any, Any, Any, int, float]] = []

    def add(self, headers: Mapping[str, Any] | None, queue: str, seconds: float) -> None:
        """On the path of every success, so it only takes note."""
        if not headers or h.ID not in headers or headers.get(h.QUEUE) != queue or not self._batch:
            return
        rows = self._rows
        if len(rows) >= MOST_OUTCOMES:
            return  # nobody takes them: the audit will have to presume
        rows.append((headers[h.ID], headers.get(h.ROUND), headers.get(h.COUNT), time.time_ns(), seconds))
        if len(rows) >= self._batch:
            self._full()
        elif len(rows) == 1:
            self._begin()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def take(self) -> bytes | None:
        """The report that is due, or None."""
        rows, self._rows = self._rows, []
        return report_of(rows) if rows else None

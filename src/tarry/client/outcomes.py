"""Collects starts and successes and combines them into few reports to the audit. Nothing here waits, sends or fails."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from tarry.amqp.properties import PERSISTENT, Properties
from tarry.client.options import Options
from tarry.contract import headers as h
from tarry.contract.outcome import CONTENT_TYPE, MOST_OUTCOMES, report_of

PROPERTIES = Properties(content_type=CONTENT_TYPE.encode(), delivery_mode=PERSISTENT)

Headers = Mapping[str, Any] | None


class Outcomes:
    """Collects starts and successes of messages that came back from tarry, which does not know any others.

    A start is reported only if its attempt is still running after `report_seconds`: most attempts end earlier and cost
    nothing. `begin` is called if there is something to report later, and must ensure that `take` is called in time.
    """

    def __init__(self, options: Options, begin: Callable[[], None], full: Callable[[], None]) -> None:
        self._batch = options.report_batch if options.report else 0
        self._with_starts = options.report and options.report_starts
        self._long_ns = int(options.report_seconds * 1e9)
        self._consumer = options.consumer
        self._begin, self._full = begin, full
        self._rows: list[tuple[Any, Any, Any, int, float]] = []
        self._starts: dict[tuple[str, int], int] = {}
        """Attempts that are running and not reported yet, with the time of their start."""
        self._armed = False
        """Whether `begin` was called since the last `take`."""

    def start(self, headers: Headers, queue: str) -> bool:
        """An attempt begins. Runs for every delivery.

        True if it is to be reported: the caller takes the report at once, or arms the timer.
        """
        if not headers or h.ID not in headers or not self._with_starts or headers.get(h.QUEUE) != queue:
            return False
        retry_id, round_ = headers[h.ID], headers.get(h.ROUND)
        if not isinstance(retry_id, str) or not isinstance(round_, int) or len(self._starts) >= MOST_OUTCOMES:
            return False
        self._starts[retry_id, round_] = time.time_ns()
        return True

    def arm(self) -> None:
        """Has what is pending reported in time."""
        if not self._armed:
            self._armed = True
            self._begin()

    def end(self, headers: Headers) -> None:
        """The attempt ended and was not a success: a request follows, or the broker has the message again."""
        if self._starts and headers:
            self._starts.pop(_key(headers), None)

    def add(self, headers: Headers, queue: str, seconds: float) -> None:
        """Runs on the path of every success, so it only appends a row."""
        if not headers or h.ID not in headers or headers.get(h.QUEUE) != queue or not self._batch:
            return
        if self._starts:
            self._starts.pop(_key(headers), None)
        rows = self._rows
        if len(rows) >= MOST_OUTCOMES:
            return  # reports are not being taken; the audit has to presume these successes
        rows.append((headers[h.ID], headers.get(h.ROUND), headers.get(h.COUNT), time.time_ns(), seconds))
        if len(rows) >= self._batch or (self._with_starts and seconds * 1e9 >= self._long_ns):
            self._full()  # the start of a long attempt was reported: if its success is lost, it counts as stuck
        else:
            self.arm()

    def __bool__(self) -> bool:
        """Whether there are successes to report."""
        return bool(self._rows)

    def is_ready(self) -> bool:
        """Whether there is something to report now. If it is too early for all of it, the timer is armed again."""
        if self._rows or self._long_starts(self._long_ns):
            return True
        self._armed = False
        if self._starts:
            self.arm()
        return False

    def take(self, *, every_start: bool = False) -> bytes | None:
        """The pending report, or None; with `every_start`, also of attempts that have only just begun."""
        rows, self._rows, self._armed = self._rows, [], False
        starts = self._long_starts(0 if every_start else self._long_ns)
        for retry_id, round_, _ in starts:
            del self._starts[retry_id, round_]
        if self._starts:
            self.arm()
        return report_of(rows, starts, self._consumer or _process()) if rows or starts else None

    def forget_starts(self) -> None:
        """For a consumer that closes: the broker delivers what it has not settled again."""
        self._starts.clear()

    def _long_starts(self, at_least_ns: int) -> list[tuple[str, int, int]]:
        latest = time.time_ns() - at_least_ns
        return [(*key, at_ns) for key, at_ns in self._starts.items() if at_ns <= latest]


def _key(headers: Mapping[str, Any]) -> Any:
    """The key of a start; None for headers that no start was made of, whose values may not even be hashable."""
    retry_id, round_ = headers.get(h.ID), headers.get(h.ROUND)
    return (retry_id, round_) if isinstance(retry_id, str) and isinstance(round_, int) else None


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"

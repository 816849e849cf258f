"""Evidence of a long run: a message is judged some time after its end and then forgotten, so memory stays bounded.

What every message was meant to do can be drawn again from the seed and its number; that is enough to know a copy that
comes when its message is forgotten already, and to check the audit at the end.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from dataclasses import dataclass, field

import psycopg

from tests.chaos.evidence import Evidence, Row
from tests.chaos.judge import Verdict, judge_entry, judge_row
from tests.chaos.load.plan import Plan
from tests.chaos.scene import Scene

SETTLE = 60.0
"""Seconds. Longer than the broker takes to offer a message again and to give a connection up: copies come before."""

EVERY_ROW = "select message_id, queue, state, round, coalesce(returned_round, 0) from retry"
SLICE = 5_000
SHOWN = 1_000
"""Complaints of each kind that are kept."""


@dataclass
class Rolling(Evidence):
    """Only messages that are under way, or were a minute ago."""

    plan: Plan = field(kw_only=True)
    verdict: Verdict = field(default_factory=lambda: Verdict(drifts_ms=array("i")))
    reviewed: set[int] = field(default_factory=set)
    """Numbers of all that ever lay in review: two in a hundred."""
    _read: int = -1
    """The highest number that the ledger had at the last look."""
    _open: set[int] = field(default_factory=set)
    _ended_at: deque[tuple[float, int]] = field(default_factory=deque)

    def digest(self, *, all_of_them: bool = False) -> None:
        """After a look: judge and forget those that ended long enough ago, or whatever there is."""
        now = time.monotonic()
        self._notice(now)
        while self._ended_at and (all_of_them or now - self._ended_at[0][0] > SETTLE):
            self._judge(self._ended_at.popleft()[1])
        for number in list(self._open) if all_of_them else ():
            self._open.discard(number)
            self._judge(number)
        self._late_copies()
        if all_of_them:
            self.verdict.unaccounted += [f"{one} in review was never sent" for one in self.reviews]
            self.verdict.unaccounted += [f"arrival {number} was never sent" for number in self.arrivals]
        del self.verdict.lost[SHOWN:], self.verdict.early[SHOWN:], self.verdict.unaccounted[SHOWN:]

    @property
    def under_way(self) -> int:
        return len(self._open)

    @property
    def planned(self) -> int:
        return self._read + 1

    def _notice(self, now: float) -> None:
        """New messages, and those that have come to their end since."""
        highest = max(self.entries, default=self._read)
        self._open.update(number for number in range(self._read + 1, highest + 1) if number in self.entries)
        self._read = max(self._read, highest)
        ended = [number for number in self._open if self._is_over(number)]
        self._open.difference_update(ended)
        self._ended_at.extend((now, number) for number in ended)

    def _is_over(self, number: int) -> bool:
        entry = self.entries[number]
        accepted = any(arrival.did == "accept" for arrival in self.arrivals.get(number, ()))
        return bool(entry.confirmed_ms) and (accepted or entry.task.message_id in self.reviews)

    def _judge(self, number: int) -> None:
        entry = self.entries[number]
        if entry.task.message_id in self.reviews:
            self.reviewed.add(number)
        self.verdict.messages += 1
        self.verdict.in_review += self.reviews[entry.task.message_id]
        judge_entry(self.verdict, self, entry)
        del self.entries[number]
        self.arrivals.pop(number, None)
        self.reviews.pop(entry.task.message_id, None)
        self.reasons.pop(entry.task.message_id, None)

    def _late_copies(self) -> None:
        """Of messages that are forgotten; what was never sent is nobody's copy."""
        for number in [number for number in self.arrivals if number not in self.entries and number <= self._read]:
            for arrival in self.arrivals.pop(number):
                if number < 0:
                    self.verdict.unaccounted.append(f"something came damaged to {arrival.queue}")
                elif arrival.redelivered:
                    self.verdict.redelivered += 1
                else:
                    self.verdict.duplicates += 1
        for message_id in [one for one in self.reviews if self._number(one) not in self.entries]:
            if 0 <= self._number(message_id) <= self._read:
                self.verdict.duplicates += self.reviews.pop(message_id)

    def _number(self, message_id: str) -> int:
        tail = message_id.removeprefix(f"{self.plan.prefix}-")
        return int(tail) if tail.isdigit() else -1

    def judge_audit(self, scene: Scene) -> None:
        """Reads row by row: each failed message must be there once, in the right state."""
        seen = bytearray(self.planned)
        with psycopg.connect(scene.dsn) as connection, connection.cursor(name="retries") as rows:
            rows.itersize = SLICE
            for message_id, queue, *rest in rows.execute(EVERY_ROW):
                number = self._number(message_id)
                if not 0 <= number < self.planned or self.plan.task(number).queue != queue:
                    self.verdict.unaccounted.append(f"{message_id} of {queue} is in the audit and was never sent")
                    continue
                seen[number] = 1
                self.verdict.unaccounted += self._wrong(number, Row(*rest))
        for number in range(self.planned):
            if not seen[number]:
                self.verdict.unaccounted += self._wrong(number, None)

    def _wrong(self, number: int, row: Row | None) -> list[str]:
        return judge_row(self.plan.task(number), row, reviewed=number in self.reviewed)

"""A job, as it was ordered and as it stands. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Literal

from tarry.control.review.filters import Filter
from tarry.control.review.resend import Manner

Kind = Literal["redrive", "discard"]
MOST = 1_000_000
"""Messages in one job."""


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody wants done, and to which."""

    kind: Kind
    chosen: Filter
    manner: Manner = field(default_factory=Manner)
    rate: float | None = None
    """A second; None is as fast as it goes."""
    reason: str | None = None
    """Of a discard."""
    limit: int = MOST


@dataclass(frozen=True, slots=True)
class Job:
    """How far it is."""

    id: str
    kind: Kind
    actor: str
    created_at: datetime
    filter: dict[str, Any]
    manner: dict[str, Any]
    edits_body: bool
    rate: float | None
    reason: str | None
    total: int
    wanted: str
    runner: str | None
    is_seen: bool
    started_at: datetime | None
    run_since: datetime | None
    run_settled: int
    runs: int
    problem: str | None
    finished_at: datetime | None
    now: datetime
    waiting: int
    sending: int
    done: int
    gone: int
    """Not in the queue any more: another consumer took them."""
    failed: int
    in_doubt: int
    """Cut off between the sending and its record, and nobody saw whether they arrived."""
    skipped: int
    """Moved on by themselves, or left out when the job was ended."""

    @property
    def left(self) -> int:
        return self.waiting + self.sending

    @property
    def state(self) -> str:
        """`ready` is waiting for somebody to work on it: the service does, if it runs."""
        if self.finished_at is not None:
            return "done"
        if self.runner is not None and self.is_seen:
            return "running" if self.wanted == "run" else "stopping"
        return "ready" if self.wanted == "run" else "stopped"

    @property
    def speed(self) -> float | None:
        """A second, in this run."""
        if self.run_since is None or self.state != "running":
            return None
        elapsed = (self.now - self.run_since).total_seconds()
        settled = self.total - self.left - self.run_settled
        return settled / elapsed if elapsed > 0 and settled > 0 else None

    @property
    def eta(self) -> timedelta | None:
        """Until it is done, if it goes on like this."""
        speed = self.speed or (self.rate if self.state == "running" else None)
        return timedelta(seconds=self.left / speed) if speed and self.left else None

    def stands(self) -> Stands:
        """For whoever asked."""
        eta, speed = self.eta, self.speed
        same = {one.name: getattr(self, one.name) for one in fields(Stands) if one.name not in ("speed", "eta_seconds")}
        seconds = round(eta.total_seconds(), 1) if eta else None
        return Stands(**same, speed=round(speed, 1) if speed else None, eta_seconds=seconds)


@dataclass(frozen=True, slots=True)
class Stands:
    """A job, as it is told."""

    id: str
    kind: str
    actor: str
    state: str
    """ready, running, stopping, stopped or done."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    filter: dict[str, Any]
    manner: dict[str, Any]
    rate: float | None
    reason: str | None
    runner: str | None
    runs: int
    total: int
    left: int
    done: int
    gone: int
    failed: int
    skipped: int
    in_doubt: int
    speed: float | None
    """A second, in this run."""
    eta_seconds: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """One item that did not go as asked."""

    retry_id: str
    round: int
    state: str
    problem: str | None

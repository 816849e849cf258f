"""What the audit is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tarry.core.states import State


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that a router wants to act on."""

    retry_id: str
    round: int
    """The round that the request asks for: one more than the round that failed."""
    knows_round: bool
    redelivered: bool
    retry_count: int
    queue: str
    message_id: str | None
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim that is ours, with what the audit knows better than the request."""

    round: int
    retry_count: int
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one request, and all that is needed to rebuild its message."""

    retry_id: str
    round: int
    state: State
    queue: str
    reason: str | None = None
    exchange: str = ""
    routing_key: str = ""
    message_id: str | None = None
    retry_count: int = 0
    max_retries: int | None = None
    policy: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    error_reason: str | None = None
    since_ms: int | None = None
    due_ms: int | None = None
    delay_ms: int | None = None
    tier: str | None = None
    body: bytes | None = None
    properties: bytes | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """One sighting by the tap."""

    retry_id: str
    round: int
    queue: str
    retry_count: int
    due_ms: int
    at_ms: int
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Balance:
    """How the books stand. Each scheduled round must have returned or still be waiting; the rest is lost."""

    retries: int
    scheduled: int
    returned: int
    in_review: int
    waiting: int
    claimed: int
    unroutable: int
    duplicates: int
    overdue: int

    @property
    def lost(self) -> int:
        return max(0, self.scheduled - self.returned - self.waiting - self.unroutable) + self.overdue


@dataclass(frozen=True, slots=True)
class Drift:
    """How late returns were, in milliseconds."""

    count: int
    least: int
    p50: int
    p99: int
    most: int

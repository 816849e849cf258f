"""What the audit is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tarry.contract.identity import retry_id
from tarry.core.states import State


class Claim(NamedTuple):
    """A request that a router wants to act on."""

    retry_id: str
    """The retry that the request names, or the id of a new one."""
    round: int
    """The round that the request asks for: one more than the round that failed."""
    knows_round: bool
    redelivered: bool
    """Whether the broker says that it delivers this request again; of a dead-lettered one it cannot tell."""
    retry_count: int
    queue: str
    message_id: str | None
    since_ms: int | None
    identity: str | None = None
    matchable: bool = False
    """Whether a request without tarry's headers may be recognised by its identity."""
    death: str | None = None
    """Which dead-lettering made the request. The same one again is the same request."""
    by_content: bool = True
    """Whether an equal message that died another time is another message."""

    def set_apart(self) -> Claim:
        """The same request for a retry of its own: the one that it names is another message's. Its rounds go on."""
        return self._replace(retry_id=retry_id(self.identity or "", self.retry_id, str(self.round)))


class Granted(NamedTuple):
    """A claim that is ours, with what the audit knows better than the request."""

    retry_id: str
    round: int
    retry_count: int
    since_ms: int | None


class Claimed(NamedTuple):
    """The answer to a batch of claims, by the retry id that each asked for."""

    granted: dict[str, Granted]
    duplicate_of: dict[str, str]
    """The others, each with the retry whose request it repeats."""


class Record(NamedTuple):
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
    identity: str | None = None
    death: str | None = None
    guessed_round: int = 0
    """The latest round that began without tarry's headers, as far as this router knows."""


class Return(NamedTuple):
    """One sighting by the tap."""

    retry_id: str
    round: int
    queue: str
    retry_count: int
    due_ms: int
    at_ms: int
    redelivered: bool
    tier: str = ""
    """The policy tier it waited in, or the ladder."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How the books stand. Every round that was ever asked for has exactly one fate; an overdue one has none yet."""

    retries: int
    scheduled: int
    """Rounds that the broker confirmed into a tier, whatever became of them."""
    returned: int
    in_review: int
    waiting: int
    claimed: int
    unroutable: int
    duplicates: int
    """Requests that were the same again."""
    overdue: int
    """Of those that wait: due longer ago than the grace, and not seen to return."""
    cancelled: int = 0
    held: int = 0
    discarded: int = 0
    unseen: int = 0
    """Returned for sure, since a later round began, but not seen by the tap."""
    recovered: int = 0
    """Of all rounds: sent again by `tarry audit recover`."""
    twice: int = 0
    """Copies that passed the tap a second time: somebody was given a message twice."""
    rounds: int = 0

    @property
    def requests(self) -> int:
        """Every request seen."""
        return self.rounds + self.duplicates

    @property
    def accounted(self) -> int:
        """All the fates together."""
        settled = self.returned + self.unseen + self.in_review + self.cancelled + self.discarded
        return settled + self.waiting + self.held + self.claimed + self.unroutable + self.duplicates

    @property
    def lost(self) -> int:
        """As far as the books alone can tell; `verify` asks the broker too."""
        return max(0, self.requests - self.accounted) + self.overdue


@dataclass(frozen=True, slots=True)
class Drift:
    """How late returns were, in milliseconds."""

    count: int
    least: int
    p50: int
    p99: int
    most: int

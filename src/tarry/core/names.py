"""Every name on the broker and every routing key on the way, in one place.

An installation's names share a prefix (default `retry.`), so two can live in one vhost. Keys need no prefix of their
own: they are only ever looked up in tarry's exchanges. Keys on messages that return through a user's exchange are
single words without a dot that start with `~`: no topic binding there matches one unless it is made of wildcards alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from tarry.core.durations import format_duration

RESERVED = "~"
"""First character of all of tarry's routing keys; a request whose own key starts with it goes to review."""

LONGEST_NAME = 255
"""Bytes in an AMQP short string: the limit for queue names and binding keys."""

LONGEST_RELAYED_NAME = 240
"""A longer destination name leaves no room for the name of its relay."""

ENTER_LADDER = "~in:ladder"


def enter_key(tier_ms: int) -> str:
    """The key that puts a message into a policy tier."""
    return f"~in:{format_duration(tier_ms)}"


def digit_key(level: int, digit: int) -> str:
    """The key that says how many steps a message waits at one level of the ladder."""
    return f"~{level}:{digit}"


def skip_key(level: int, to: int | None) -> str:
    """The key that leads from one level of the ladder past those below it where a message does not wait; None: out."""
    return f"~{level}>{'end' if to is None else to}"


def id_key(retry_id: str, round_: int) -> str:
    """The key that a cancel binds."""
    return f"~id:{retry_id}:{round_}"


class Destination(NamedTuple):
    """Where a message returns: to the queue it failed in, or through the exchange it came by."""

    kind: Literal["queue", "exchange"]
    name: str

    @property
    def key(self) -> str:
        """`~to:orders`, `~via:events`; dots and over-long names are encoded so that it stays one bindable word."""
        return _way_home(self.kind, self.name)

    @property
    def can_have_relay(self) -> bool:
        return len(self.name.encode()) <= LONGEST_RELAYED_NAME

    @property
    def label(self) -> str:
        """The last part of the relay's and the held queue's name."""
        return self.name if self.kind == "queue" else f"exchange:{self.name}"


@lru_cache(maxsize=4_096)
def _way_home(kind: str, name: str) -> str:
    verb = "to" if kind == "queue" else "via"
    word = name.replace("%", "%25").replace(".", "%2E") if kind == "exchange" else name
    key = f"{RESERVED}{verb}:{word}"
    if len(key.encode()) > LONGEST_NAME:
        return f"{RESERVED}{verb}#{hashlib.sha256(name.encode()).hexdigest()}"
    return key


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one installation."""

    prefix: str = "retry."
    scheduled: str = "retry.scheduled"
    review_queue: str = "manual-review.pending"

    @property
    def intake(self) -> str:
        return f"{self.prefix}intake"

    @property
    def delay(self) -> str:
        return f"{self.prefix}delay"

    @property
    def cancelled_gate(self) -> str:
        return f"{self.prefix}gate.cancelled"

    @property
    def cancelled(self) -> str:
        return f"{self.prefix}cancelled"

    @property
    def relay(self) -> str:
        return f"{self.prefix}relay"

    @property
    def relay_else(self) -> str:
        return f"{self.prefix}relay.else"

    @property
    def held_gate(self) -> str:
        return f"{self.prefix}gate.held"

    @property
    def released_gate(self) -> str:
        return f"{self.prefix}gate.released"

    @property
    def arrive(self) -> str:
        return f"{self.prefix}arrive"

    @property
    def audit(self) -> str:
        return f"{self.prefix}audit"

    @property
    def spool(self) -> str:
        return f"{self.prefix}spool"

    @property
    def reports(self) -> str:
        return f"{self.prefix}reports"

    @property
    def deliver(self) -> str:
        return f"{self.prefix}deliver"

    @property
    def unroutable(self) -> str:
        return f"{self.prefix}unroutable"

    @property
    def applied(self) -> str:
        """Carries no messages: the arguments of its binding say which topology was applied."""
        return f"{self.prefix}applied"

    @property
    def review(self) -> str:
        return f"{self.prefix}review"

    def tier(self, tier_ms: int) -> str:
        return f"{self.prefix}delay.{format_duration(tier_ms)}"

    def ladder(self, level: int) -> str:
        return f"{self.prefix}ladder.{level}"

    def ladder_tier(self, level: int, ttl_ms: int) -> str:
        return f"{self.prefix}ladder.{level}.{format_duration(ttl_ms)}"

    def relay_queue(self, destination: Destination) -> str:
        return f"{self.prefix}relay.{destination.label}"

    def held_queue(self, destination: Destination) -> str:
        return f"{self.prefix}held.{destination.label}"

    def is_ours(self, name: str) -> bool:
        """Whether a name belongs to tarry or to the broker: never a destination for a retry."""
        return name.startswith((self.prefix, "amq.")) or name in ("", self.scheduled, self.review_queue)

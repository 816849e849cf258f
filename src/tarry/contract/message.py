"""What comes in, and what parsing makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tarry.contract.fields import Entry
from tarry.contract.properties import Properties
from tarry.core.decide import Failure
from tarry.core.names import Names

Form = Literal["reject", "headers", "envelope"]

LARGEST_BODY = 8 * 2**20
"""Bytes. A tier keeps its messages in the log of a quorum queue, which larger bodies would choke for everyone."""


class Delivery(NamedTuple):
    """A message as the broker handed it over."""

    body: bytes
    properties: Properties
    exchange: str | bytes = ""
    routing_key: str | bytes = ""
    redelivered: bool = False
    tag: int = 0


class Origin(NamedTuple):
    """Where a message failed, and how it had come there."""

    queue: str
    exchange: str
    routing_key: str


NO_ORIGIN = Origin("", "", "")


class Request(NamedTuple):
    """A retry request, understood."""

    delivery: Delivery
    form: Form
    retry_id: str
    deduplicable: bool
    """Whether it can be recognised by its identity; a message without an id cannot."""
    knows_round: bool
    """Whether tarry's own headers say which round just failed."""
    message_id: str | None
    origin: Origin
    failure: Failure
    body: bytes
    speaks_contract: bool
    """Whether the contract's headers on it are ours to read and rewrite, or the application's own."""
    identity: str | None = None
    """Equal for requests that speak of the same message: queue, message id and content."""
    death: str | None = None
    """Which dead-lettering made this request; None if it was published."""
    entries: list[Entry] | None = None
    """Where everything stands in its header table, so that it is walked only once; None where that is too much."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A delivery that cannot be understood, and why; with what could be read of it."""

    delivery: Delivery
    retry_id: str
    reason: str
    message_id: str | None = None
    origin: Origin = NO_ORIGIN
    """The queue is empty where none could be read."""
    speaks_contract: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """A message of `tarry attach` that has proven its way by arriving here."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the topology says about which requests may be acted on."""

    names: Names
    destinations: tuple[str, ...] = ("*",)
    failures: tuple[str, ...] = ("rejected", "delivery_limit")
    largest_body: int = LARGEST_BODY
    sound: set[Origin] = field(default_factory=set, init=False, repr=False, compare=False)
    """Origins that were looked at before and found good."""

"""The results of parsing a delivery: `Request`, `Refused` or `Probe`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import Entry
from tarry.contract.trace import TraceContext
from tarry.core.decide import Failure
from tarry.core.names import Names

Form = Literal["reject", "headers", "envelope"]

LARGEST_BODY = 8 * 2**20
"""Bytes. A tier stores its messages in the log of a quorum queue; larger bodies would slow it down for all messages."""


class Origin(NamedTuple):
    """The queue a message failed in, and the exchange and routing key by which it got there."""

    queue: str
    exchange: str
    routing_key: str


NO_ORIGIN = Origin("", "", "")


class Request(NamedTuple):
    """A valid retry request."""

    delivery: Delivery
    form: Form
    retry_id: str
    deduplicable: bool
    """Whether its identity can reveal a duplicate; that of a message without an id cannot."""
    knows_round: bool
    """Whether tarry's own headers state which round failed."""
    message_id: str | None
    origin: Origin
    failure: Failure
    body: bytes
    priority: int | None
    """The message's own AMQP priority. The property differs if a policy has returned it with another one."""
    speaks_contract: bool
    """Whether its contract headers are for tarry to read and rewrite; otherwise they belong to the application."""
    identity: str | None = None
    """Equal for requests about the same message: same queue, message id and content."""
    death: str | None = None
    """The dead-lettering that made this request; None if it was published."""
    entries: list[Entry] | None = None
    """The entries of its header table, so that it is scanned only once; None if there are too many to keep."""
    trace: TraceContext | None = None
    """The trace that the message belongs to, sampled or not."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A delivery that is not a valid request, with the reason and what could be read of it."""

    delivery: Delivery
    retry_id: str
    reason: str
    priority: int | None
    message_id: str | None = None
    origin: Origin = NO_ORIGIN
    """The queue is empty if none could be read."""
    speaks_contract: bool = False


def trace_field(item: Request | Refused) -> dict[str, str]:
    """The field of a log line that names the trace, if there is one."""
    return {"trace_id": item.trace.trace_id} if isinstance(item, Request) and item.trace is not None else {}


@dataclass(frozen=True, slots=True)
class Probe:
    """A test message of `tarry attach`: its arrival proves that the queue is connected."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The topology's rules on which requests are accepted."""

    names: Names
    destinations: tuple[str, ...] = ("*",)
    failures: tuple[str, ...] = ("rejected", "delivery_limit")
    largest_body: int = LARGEST_BODY
    sound: set[Origin] = field(default_factory=set, init=False, repr=False, compare=False)
    """Origins that were checked before and accepted."""

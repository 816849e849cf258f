"""Known destinations, their labels, and which of them match a pattern."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from tarry.amqp.management import Management
from tarry.core.names import GATE_KINDS, Destination, is_gate_key
from tarry.errors import BrokerError, ControlError, NotFoundError
from tarry.operations.context import OperatorContext
from tarry.tasks import in_thread

log = structlog.get_logger()


def is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def matching(pattern: str, labels: Iterable[str]) -> list[str]:
    """The labels that match the glob, or equal it: a name that contains glob characters also matches itself."""
    return sorted(label for label in labels if label == pattern or fnmatch.fnmatchcase(label, pattern))


async def seen_in_store(context: OperatorContext) -> set[str]:
    """Destinations that have open retries."""
    return {row[0] for row in await context.store.rows("open_queues")}


async def bound_on_broker(context: OperatorContext) -> set[str] | None:
    """Destinations that a router ever delivered to, or that are attached; None if the management API fails."""
    try:
        found = await in_thread(
            lambda: Management(context.address).bindings_from(context.names.deliver), "destinations"
        )
    except BrokerError as error:
        log.warning("only destinations with open retries are known", reason=str(error))
        return None
    return {Destination(one["destination_type"], one["destination"]).label for one in found}


async def held_on_broker(context: OperatorContext) -> set[str]:
    """The labels of what is paused on the broker, whatever the store contains; empty if the management API fails."""
    names, management = context.names, Management(context.address)
    gates = (names.held_gate, *map(names.gate, GATE_KINDS))
    try:
        found = await in_thread(lambda: [one for gate in gates for one in management.bindings_from(gate)], "holds")
    except BrokerError:
        return set()
    labels = (names.destination_label(one["destination"]) for one in found)
    return {label for label in labels if label is not None}


class HeldBinding(NamedTuple):
    """A binding of a held queue."""

    exchange: str
    queue: str
    key: str


async def held_bindings(context: OperatorContext) -> set[HeldBinding]:
    """The bindings of all held queues of destinations, on both gates; empty if the management API fails."""
    gates, management = (context.names.held_gate, context.names.recheck_held), Management(context.address)
    try:
        found = await in_thread(lambda: [one for gate in gates for one in management.bindings_from(gate)], "holds")
    except BrokerError:
        return set()
    return {HeldBinding(one["source"], one["destination"], one["routing_key"]) for one in found}


async def matching_destinations(context: OperatorContext, pattern: str) -> list[str]:
    """The destinations that match a pattern now. A plain name must be a known destination: it may be mistyped."""
    bound = await bound_on_broker(context)
    known = (bound or set()) | await seen_in_store(context)
    if is_glob(pattern):
        return [label for label in matching(pattern, known) if can_be_held(label)]
    if is_gate_key(pattern):
        raise ControlError(f"{pattern!r} cannot be paused: names that begin so stand for policies and job types.")
    if not can_be_held(pattern):
        raise ControlError(
            f"{pattern[:60]!r}… cannot be paused: with a name this long, its held queue cannot be named."
        )
    if bound is not None and pattern not in known:
        raise NotFoundError(
            f"No retry ever went to {pattern!r}, and it is not attached: see `tarry attach --list`. "
            f"To pause destinations that appear later, use a glob, as in '{pattern}*'."
        )
    return [pattern]


def can_be_held(label: str) -> bool:
    """Whether a held queue can be named after this destination."""
    return Destination.of_label(label).can_have_relay and not is_gate_key(label)

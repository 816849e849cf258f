"""Checks of what is declared: exchanges, queues, arguments and bindings against the files. All pure."""

from __future__ import annotations

from collections.abc import Iterator

from tarry.core.names import RESERVED, Destination
from tarry.topology.expected import Expected
from tarry.topology.explain import explain_conflict, explain_details, way_to_migrate
from tarry.topology.findings import APPLY, Finding
from tarry.topology.left_over import tier_role
from tarry.topology.live import Live
from tarry.topology.objects import Binding, Queue
from tarry.topology.plan import Difference, Plan, make_plan


def plan_of(expected: Expected, live: Live) -> Plan:
    return make_plan(expected.names, expected.blueprint, live)


def check_missing(expected: Expected, live: Live) -> Iterator[Finding]:
    missing = plan_of(expected, live).missing
    for part in missing.parts:
        yield Finding("missing", (f"{part.kind} {part.name}",), "is missing", APPLY)
    for binding in missing.bindings:
        yield Finding("missing", (f"binding {binding}",), "is missing", APPLY)


def check_arguments(expected: Expected, live: Live) -> Iterator[Finding]:
    """Types, arguments, alternate exchanges, durability."""
    for difference in plan_of(expected, live).different:
        yield _different(expected, difference)


def check_conflicts(expected: Expected, live: Live) -> Iterator[Finding]:
    for conflict in plan_of(expected, live).conflicts:
        problem, _, mend = explain_conflict(conflict).partition(". ")
        subject, _, problem = problem.partition(": ")
        yield Finding("binding", (subject,), problem, mend.rstrip("."))


def check_left_over(expected: Expected, live: Live) -> Iterator[Finding]:
    for part in plan_of(expected, live).left_over:
        depth = live.depths.get(part.name, 0)
        mend = f"tarry topology drain {part.name}" if isinstance(part, Queue) else "tarry topology prune"
        holds = f" and holds {depth} messages" if depth else ""
        yield Finding("left over", (f"{part.kind} {part.name}",), f"is in no policy any more{holds}", mend, "note")


def check_relays(expected: Expected, live: Live) -> Iterator[Finding]:
    """Each destination's relay and held queue, where it has them, must be what attach made them."""
    for destination in destinations(expected, live):
        for wanted in (expected.relay_of(destination), expected.held_of(destination)):
            standing = live.queues.get(wanted.name) if wanted is not None else None
            if wanted is not None and standing is not None and standing != wanted:
                yield _different(expected, Difference(wanted, standing, live.depths.get(wanted.name, 0)))


def check_ways_home(expected: Expected, live: Live) -> Iterator[Finding]:
    """A relay whose messages find no way home sends them all to the unroutable queue."""
    names = expected.names
    home = {binding.key for binding in live.bindings if binding.source == names.deliver}
    for binding in live.bindings_from(names.relay):
        if binding.key not in home:
            name = binding.destination.removeprefix(names.relay + ".")
            problem = "has a relay and no way home: its retries would end in the unroutable queue"
            yield Finding("destination", (name,), problem, f"tarry attach {name}")


def check_foreign_bindings(expected: Expected, live: Live) -> Iterator[Finding]:
    """A binding that tarry did not make takes a copy of every message, and a queue that rejects stalls the tiers."""
    ours = {exchange.name for exchange in expected.blueprint.exchanges}
    conflicting = {conflict.live for conflict in plan_of(expected, live).conflicts}
    planned = {*expected.blueprint.bindings, *conflicting}
    for binding in sorted(live.bindings - planned, key=str):
        if binding.source in ours and not _known(expected, binding):
            problem = "was not made by tarry; it takes copies of messages on their way"
            yield Finding("binding", (f"binding {binding}",), problem, "unbind it in the management UI")


def destinations(expected: Expected, live: Live) -> list[Destination]:
    """All that messages can return to, read from the deliver exchange."""
    found = (
        Destination(binding.destination_type, binding.destination)
        for binding in live.bindings_from(expected.names.deliver)
    )
    return sorted(set(found), key=lambda destination: (destination.kind, destination.name))


def _known(expected: Expected, binding: Binding) -> bool:
    """Made by attach, pause, cancel, or an earlier topology."""
    names = expected.names
    if binding.source == names.deliver:
        return binding.key == Destination(binding.destination_type, binding.destination).key
    if binding.source in (names.relay, names.held_gate):
        stem = f"{names.prefix}relay." if binding.source == names.relay else f"{names.prefix}held."
        return binding.key.startswith(RESERVED) and binding.destination.startswith(stem)
    if binding.source in (names.cancelled_gate, names.released_gate):
        return binding.destination == names.cancelled
    return tier_role(names, binding.destination) is not None


def _different(expected: Expected, difference: Difference) -> Finding:
    wanted = difference.wanted
    mend = way_to_migrate(expected.names, difference)
    return Finding("arguments", (f"{wanted.kind} {wanted.name}",), explain_details(difference), mend)

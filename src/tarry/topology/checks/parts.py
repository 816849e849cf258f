"""Checks of what is declared: compares exchanges, queues, arguments and bindings with the files. All pure."""

from __future__ import annotations

from collections.abc import Iterator

from tarry.core.names import AUTOMATIC, GATE_KINDS, LAYOVER, RESERVED, Destination, Kind
from tarry.topology.blueprint import first_gate, former_first_gate
from tarry.topology.expected import Expected, tier_role
from tarry.topology.findings import APPLY, Finding
from tarry.topology.live import Live
from tarry.topology.objects import Binding, Queue
from tarry.topology.plan import (
    Difference,
    Plan,
    explain_conflict,
    explain_details,
    make_plan,
    way_to_migrate,
    way_to_remove_webhook,
)


def plan_of(expected: Expected, live: Live) -> Plan:
    return make_plan(expected.names, expected.blueprint, live)


def check_missing(expected: Expected, live: Live) -> Iterator[Finding]:
    missing = plan_of(expected, live).missing
    for part in missing.parts:
        yield Finding("missing", (f"{part.kind} {part.name}",), "is missing", APPLY)
    for binding in missing.bindings:
        if binding == first_gate(expected.names) and former_first_gate(expected.names) not in live.bindings:
            # Unlike the gate itself, a router cannot do without any way home: see `startup_checks`.
            yield Finding("binding", (f"binding {binding}",), "is missing: no message returns", APPLY)
            continue
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


def check_former(expected: Expected, live: Live) -> Iterator[Finding]:
    for binding in plan_of(expected, live).former:
        if binding == former_first_gate(expected.names):
            if first_gate(expected.names) in live.bindings:  # otherwise that one is reported as missing
                problem = "is of an earlier version: by it a message returns although its check queue has it as well"
                yield Finding("binding", (f"binding {binding}",), problem, APPLY)
            continue
        if binding.source == expected.names.delay:
            problem = f"leads into lane {expected.names.lane_of_key(binding.key)}, which no policy names"
            yield Finding("binding", (f"binding {binding}",), problem, APPLY, "note")
            continue
        if binding.source == expected.names.events:
            problem = "routes events to a webhook that does not want them"
            yield Finding("binding", (f"binding {binding}",), problem, APPLY, "note")
            continue
        problem = "is of an earlier version: by it a message returns even if its policy or job type is paused"
        yield Finding("binding", (f"binding {binding}",), problem, APPLY)


def check_left_over(expected: Expected, live: Live) -> Iterator[Finding]:
    for part in plan_of(expected, live).left_over:
        depth = live.depths.get(part.name, 0)
        content = f" and holds {depth} messages" if depth else ""
        mend = f"tarry topology drain {part.name}" if isinstance(part, Queue) else "tarry topology prune"
        where = "policy"
        if expected.names.webhook_of(part.name) is not None:
            where, mend = "webhook", way_to_remove_webhook(part.name) if depth else "tarry topology prune"
        lane = expected.names.lane_of(part.name) or expected.names.lane_of_exchange(part.name)
        if lane is not None and lane not in expected.topology.lanes:
            mend = "tarry topology apply, then prune"
        problem = f"is no longer in any {where}{content}"
        yield Finding("left over", (f"{part.kind} {part.name}",), problem, mend, "note")


def check_relays(expected: Expected, live: Live) -> Iterator[Finding]:
    """Each destination's relay and held queue, if present, must be as attach declared it."""
    names, lanes = expected.names, (None, *expected.topology.lanes)
    for destination in destinations(expected, live):
        # Of ten thousand destinations most have neither: what they should be like is not worked out.
        has_relay = any(names.relay_queue(destination, lane) in live.queues for lane in lanes)
        is_held = names.held_queue(destination) in live.queues
        relays = expected.relays_of(destination) if has_relay else []
        for wanted in (*relays, *([expected.held_of(destination)] if is_held else [])):
            standing = live.queues.get(wanted.name)
            if standing is not None and standing != wanted:
                yield _different(expected, Difference(wanted, standing, live.depths.get(wanted.name, 0)))
    for name, held in sorted(live.queues.items()):
        found = names.parse(name) if names.has_prefix(name) else None
        if found is not None and found.kind == "gate":
            as_declared = Queue(name, expected.held_of(AUTOMATIC).arguments)
            if held != as_declared and as_declared not in expected.blueprint.queues:
                yield _different(expected, Difference(as_declared, held, live.depths.get(name, 0)))


def check_ways_home(expected: Expected, live: Live) -> Iterator[Finding]:
    """A relay queue without a binding on the deliver exchange would send all its messages to the unroutable queue."""
    names = expected.names
    home = {binding.key for binding in live.bindings if binding.source == names.deliver}
    for binding in live.bindings_from(names.relay):
        if binding.key not in home and binding.key != LAYOVER:
            name = names.destination_label(binding.destination) or binding.destination
            problem = "has a relay but no return binding: its retries would end in the unroutable queue"
            yield Finding("destination", (name,), problem, f"tarry attach {name}")


def check_foreign_bindings(expected: Expected, live: Live) -> Iterator[Finding]:
    """A binding that tarry did not create takes a copy of every message, and a queue that rejects stalls the tiers."""
    ours = {exchange.name for exchange in expected.blueprint.exchanges}
    plan = plan_of(expected, live)
    reported = {*(conflict.live for conflict in plan.conflicts), *plan.former}
    planned = {*expected.blueprint.bindings, *reported}
    for binding in sorted(live.bindings - planned, key=str):
        if binding.source in ours and not _known(expected, binding):
            problem = "was not created by tarry; it takes copies of messages in flight"
            yield Finding("binding", (f"binding {binding}",), problem, "unbind it in the management UI")


def destinations(expected: Expected, live: Live) -> list[Destination]:
    """All queues and exchanges that messages can return to, read from the bindings of the deliver exchange."""
    found = (
        Destination(binding.destination_type, binding.destination)
        for binding in live.bindings_from(expected.names.deliver)
    )
    return sorted(set(found), key=lambda destination: (destination.kind, destination.name))


def _known(expected: Expected, binding: Binding) -> bool:
    """Whether the binding was created by attach, pause, cancel, an earlier topology, or a reader of events."""
    names = expected.names
    if binding.source == names.events:
        return True  # anybody may bind a queue to it
    if binding.source == names.deliver:
        return binding.key == Destination(binding.destination_type, binding.destination).key
    kind = _kinds_behind(expected).get(binding.source)
    if kind is not None:
        found = names.parse(binding.destination)
        serves_one = found is not None and found.kind == kind and found.label is not None
        return serves_one and binding.key.startswith(RESERVED)
    if binding.source in (
        names.cancelled_gate,
        names.released_gate,
        names.recheck_cancelled,
        names.lanes_cancelled,
    ):
        return binding.destination == names.cancelled
    return tier_role(names, binding.destination) is not None


def _kinds_behind(expected: Expected) -> dict[str, Kind]:
    """The exchanges on which attach and pause create bindings, and the kind of queue behind each."""
    names = expected.names
    relays: dict[str, Kind] = {names.relay_of(lane): "relay" for lane in (None, *expected.topology.lanes)}
    gates = (*map(names.gate, GATE_KINDS), *map(names.recheck_gate, GATE_KINDS))
    behind_gates: dict[str, Kind] = dict.fromkeys(gates, "gate")
    return {**relays, names.held_gate: "held", names.recheck_held: "held", **behind_gates}


def _different(expected: Expected, difference: Difference) -> Finding:
    wanted = difference.wanted
    mend = way_to_migrate(expected.names, difference)
    return Finding("arguments", (f"{wanted.kind} {wanted.name}",), explain_details(difference), mend)

"""Derives the exchanges, queues and bindings of a topology from its model; docs/topology.md shows them as a diagram.

Every decision is a direct exchange; "else" is its alternate exchange. Reading `blueprint` from top to bottom follows a
message from its request back to its origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tarry.core.durations import UNITS
from tarry.core.ladder import Ladder
from tarry.core.names import (
    AUTOMATIC,
    GATE_KINDS,
    LAYOVER,
    Check,
    Destination,
    Gate,
    Holder,
    Names,
    digit_key,
    enter_key,
    enter_ladder_key,
    skip_key,
)
from tarry.topology.model import EventsSection, Topology
from tarry.topology.objects import Arguments, Binding, Blueprint, Exchange, Queue
from tarry.topology.webhooks import Webhook

DELIVERY_LIMIT = 1_000_000
"""Set explicitly on every queue: from RabbitMQ 4.0 on, the default limit of 20 silently drops messages."""

EVERY_KEY = "#"
"""On a topic exchange."""

SEGMENTS = 20
LARGEST_SEGMENT = 100_000_000
"""Bytes. A stream deletes whole segments: with the broker's default of 500 MB it would keep far more than it should."""


def blueprint(topology: Topology) -> Blueprint:
    """What a broker needs for this topology, without any destination."""
    names, ladder, lanes = topology.broker_names, topology.ladder_shape, topology.lanes
    tiers, checks = sorted(topology.rules.tiers), sorted(topology.rules.checks)
    events = events_blueprint(names, topology.events)
    webhooks = [webhook_blueprint(names, webhook, lanes) for webhook in topology.webhooks]
    own = [lane_blueprint(names, ladder, lane, sorted(topology.rules.tiers_of(lane))) for lane in lanes]
    return Blueprint(
        exchanges=(
            *_exchanges(names, ladder),
            *events.exchanges,
            *((lanes_gate(names),) if lanes else ()),
            *(exchange for one in own for exchange in one.exchanges),
        ),
        queues=(
            *_service_queues(names),
            *events.queues,
            *(check_queue(names, check) for check in checks),
            *_tier_queues(names, ladder, tiers),
            *_ladder_queues(names, ladder),
            *(queue for one in own for queue in one.queues),
            *(queue for one in webhooks for queue in one.queues),
        ),
        bindings=(
            *events.bindings,
            *_way_home(names),
            *_ladder_bindings(names, ladder),
            *_tier_bindings(names, ladder, tiers),
            *_ways_in(names),
            *(check_entry(names, check) for check in checks),
            *(binding for one in own for binding in one.bindings),
            *(binding for one in webhooks for binding in one.bindings),
        ),
    )


def lane_blueprint(names: Names, ladder: Ladder, lane: str, tiers: list[int]) -> Blueprint:
    """The tiers, the ladder and the shared relay of one lane. Its entries are bound last: until then nothing enters."""
    relay = relay_queue(names.relay_of(lane), names, lane)
    return Blueprint(
        exchanges=(
            Exchange(names.relay_else_of(lane), "fanout"),
            Exchange(names.relay_of(lane), "direct", _otherwise(names.relay_else_of(lane))),
            *_ladder_exchanges(names, ladder, lane),
        ),
        queues=(relay, *_tier_queues(names, ladder, tiers, lane), *_ladder_queues(names, ladder, lane)),
        bindings=(
            Binding(names.relay_else_of(lane), "", relay.name),
            *_ladder_bindings(names, ladder, lane),
            *_tier_bindings(names, ladder, tiers, lane),
        ),
    )


def lanes_gate(names: Names) -> Exchange:
    """Where a message of a lane is diverted if it is cancelled: it comes from a relay of its lane."""
    return Exchange(names.lanes_cancelled, "direct", _otherwise(names.held_gate))


def lane_relays(names: Names, destination: Destination, lanes: Iterable[str]) -> Blueprint:
    """The relay queues of an attached destination in these lanes. Where one is missing, the lane's shared relay is
    used.
    """
    own = {lane: names.relay_queue(destination, lane) for lane in lanes if names.has_relay_queue(destination, lane)}
    return Blueprint(
        exchanges=(),
        queues=tuple(relay_queue(queue, names, lane) for lane, queue in own.items()),
        bindings=tuple(Binding(names.relay_of(lane), destination.key, queue) for lane, queue in own.items()),
    )


def events_blueprint(names: Names, section: EventsSection) -> Blueprint:
    """The exchange of events and the stream behind it, which takes every event. Nothing if events are off."""
    if not section.enabled:
        return Blueprint((), (), ())
    stream = Arguments.of(
        x_queue_type="stream",
        x_max_age=f"{section.max_age // UNITS['s']}s",
        x_max_length_bytes=section.max_bytes,
        x_stream_max_segment_size_bytes=min(LARGEST_SEGMENT, section.max_bytes // SEGMENTS),
    )
    return Blueprint(
        exchanges=(Exchange(names.events, "topic"),),
        queues=(Queue(names.events_stream, stream, role="events"),),
        bindings=(Binding(names.events, EVERY_KEY, names.events_stream),),
    )


def webhook_blueprint(names: Names, webhook: Webhook, lanes: Iterable[str] = ()) -> Blueprint:
    """The queue of a webhook's deliveries, attached to tarry by its own arguments, and its bindings.

    One consumer at a time reads it, so that its rate applies to the endpoint, however many services run. It is bound to
    the exchange of events last: before that nothing enters it.
    """
    destination = webhook.destination(names)
    queue = Queue(destination.name, _quorum(dead_letter_to=names.intake, single_active_consumer=True), role="webhook")
    attached = destination_blueprint(names, destination, lanes)
    keys = (Binding(names.events, key, destination.name) for key in webhook.binding_keys())
    return Blueprint(exchanges=(), queues=(queue, *attached.queues), bindings=(*attached.bindings, *keys))


def destination_blueprint(names: Names, destination: Destination, lanes: Iterable[str] = ()) -> Blueprint:
    """What one attached destination needs: its own relay queue, its held queue, and its binding to the deliver
    exchange; and a relay queue in each of these lanes.

    The held queue is declared in advance: an operator who pauses the destination may have a user that cannot declare
    queues.
    """
    relay, of_lanes = relay_queue(names.relay_queue(destination), names), lane_relays(names, destination, lanes)
    return Blueprint(
        exchanges=(),
        queues=(relay, held_queue(names, destination), *of_lanes.queues) if destination.can_have_relay else (),
        bindings=(
            way_home(names, destination),
            *((Binding(names.relay, destination.key, relay.name),) if destination.can_have_relay else ()),
            *of_lanes.bindings,
        ),
    )


def way_home(names: Names, destination: Destination) -> Binding:
    """The last step of the return path: from the deliver exchange to the origin."""
    return Binding(names.deliver, destination.key, destination.name, destination.kind)


def held_queue(names: Names, holder: Holder) -> Queue:
    """The queue where messages wait while their destination, policy or job type is paused.

    A message rejected there continues, with all its routing keys, past the gates that it has not passed yet. A
    destination's held queue comes before the other gates. A message from theirs may have passed one that was not paused
    then, so it passes all of them once more.
    """
    onward = names.recheck_cancelled if isinstance(holder, Gate) else names.released_gate
    return Queue(names.held_queue(holder), _quorum(dead_letter_to=onward), role="held")


def check_queue(names: Names, check: Check) -> Queue:
    """The queue where messages of a policy that are due wait until a consumer has decided whether they return.

    A message rejected there continues, with all its routing keys, and so does one that expires. It passes the gates
    again, without this check: it may have been paused while it waited.
    """
    name = names.check_queue(check.policy, check.wait_ms)
    return Queue(name, _quorum(ttl=check.wait_ms, dead_letter_to=names.recheck_cancelled), role="check")


def check_entry(names: Names, check: Check) -> Binding:
    """By which messages enter the check queue."""
    return Binding(names.check_gate, check.key, names.check_queue(check.policy, check.wait_ms))


def first_gate(names: Names) -> Binding:
    """From arrival to the first of the gates for checks, policies and job types."""
    return Binding(names.arrive, "", names.check_gate, "exchange")


def former_first_gate(names: Names) -> Binding:
    """The same in earlier versions, which had no gate for checks."""
    return Binding(names.arrive, "", names.gate(GATE_KINDS[0]), "exchange")


def former_bindings(names: Names) -> tuple[Binding, ...]:
    """Bindings of earlier versions, which had no gates, or fewer, between these two exchanges. Apply removes them."""
    return (
        Binding(names.arrive, "", names.deliver, "exchange"),
        Binding(names.arrive, "", names.audit),
        former_first_gate(names),
    )


def relay_queue(name: str, names: Names, lane: str | None = None) -> Queue:
    """A queue with a TTL of 0: it keeps a failing destination from stalling the tiers for all other destinations."""
    onward = names.held_gate if lane is None else names.lanes_cancelled
    return Queue(name, _quorum(ttl=0, dead_letter_to=onward), role="relay")


def _quorum(
    *,
    ttl: int | None = None,
    dead_letter_to: str | None = None,
    overflow: str = "reject-publish",
    single_active_consumer: bool | None = None,
) -> Arguments:
    return Arguments.of(
        x_queue_type="quorum",
        x_delivery_limit=DELIVERY_LIMIT,
        x_overflow=overflow,
        x_message_ttl=ttl,
        x_dead_letter_exchange=dead_letter_to,
        x_dead_letter_strategy="at-least-once" if dead_letter_to is not None else None,
        x_single_active_consumer=single_active_consumer,
    )


def _exchanges(names: Names, ladder: Ladder) -> Iterator[Exchange]:
    """In reverse order of the path: an exchange is never declared before its alternate exchange."""
    yield Exchange(names.unroutable, "fanout")
    yield Exchange(names.deliver, "direct", _otherwise(names.unroutable))
    yield Exchange(names.home, "fanout")
    yield from _gates([names.check_gate, *map(names.gate, GATE_KINDS)], names.home)
    rechecks = [names.recheck_cancelled, names.recheck_held, *map(names.recheck_gate, GATE_KINDS)]
    yield from _gates(rechecks, names.home)
    yield Exchange(names.arrive, "fanout")
    yield Exchange(names.held_gate, "direct", _otherwise(names.arrive))
    yield Exchange(names.released_gate, "direct", _otherwise(names.arrive))
    yield Exchange(names.relay_else, "fanout")
    yield Exchange(names.relay, "direct", _otherwise(names.relay_else))
    yield Exchange(names.cancelled_gate, "direct", _otherwise(names.relay))
    yield from _ladder_exchanges(names, ladder)
    yield Exchange(names.delay, "direct")
    yield Exchange(names.review, "fanout")
    yield Exchange(names.spool, "fanout")
    yield Exchange(names.reports, "fanout")
    yield Exchange(names.intake, "fanout")


def _ladder_exchanges(names: Names, ladder: Ladder, lane: str | None = None) -> Iterator[Exchange]:
    for level in range(ladder.levels):
        yield Exchange(names.ladder(level, lane), "direct", _otherwise(names.unroutable))


def _otherwise(exchange: str) -> Arguments:
    return Arguments.of(alternate_exchange=exchange)


def _gates(gates: list[str], end: str) -> Iterator[Exchange]:
    """A chain of gates in which each is the alternate exchange of the one before it; the last leads to `end`."""
    for gate, onward in reversed(list(zip(gates, [*gates[1:], end], strict=True))):
        yield Exchange(gate, "direct", _otherwise(onward))


def _service_queues(names: Names) -> Iterator[Queue]:
    # The audit and cancelled queues must never reject, or every tier would stall behind them.
    never_rejects = _quorum(overflow="drop-head")
    yield Queue(names.unroutable, _quorum())
    yield Queue(names.layover, _quorum())
    yield Queue(names.audit, never_rejects, role="record")
    yield Queue(names.cancelled, never_rejects, role="record")
    yield Queue(names.review_queue, _quorum())
    # A request with its own expiration must not be lost because no router consumed it in time.
    yield Queue(names.scheduled, _quorum(dead_letter_to=names.review))
    yield relay_queue(names.relay, names)
    yield held_queue(names, AUTOMATIC)


def _way_home(names: Names) -> Iterator[Binding]:
    """The bindings of the return path, from its end to its beginning.

    Delivery is bound before the tap: if apply is interrupted between the two, a message is delivered without an audit
    record rather than lost.
    """
    yield Binding(names.unroutable, "", names.unroutable)
    yield Binding(names.home, "", names.deliver, "exchange")
    yield Binding(names.home, "", names.audit)
    yield first_gate(names)
    yield Binding(names.relay_else, "", names.relay)
    yield Binding(names.relay, LAYOVER, names.layover)


def _ways_in(names: Names) -> Iterator[Binding]:
    yield Binding(names.spool, "", names.audit)
    yield Binding(names.reports, "", names.audit)
    yield Binding(names.review, "", names.review_queue)
    yield Binding(names.intake, "", names.scheduled)


def _tier_queues(names: Names, ladder: Ladder, tiers: list[int], lane: str | None = None) -> Iterator[Queue]:
    for ms in tiers:
        onward = names.ladder(ladder.levels - 1, lane)
        yield Queue(names.tier(ms, lane), _quorum(ttl=ms, dead_letter_to=onward), role="tier")


def _tier_bindings(names: Names, ladder: Ladder, tiers: list[int], lane: str | None = None) -> Iterator[Binding]:
    for ms in tiers:
        yield Binding(names.delay, enter_key(ms, lane), names.tier(ms, lane))
    yield Binding(names.delay, enter_ladder_key(lane), names.ladder(ladder.levels - 1, lane), "exchange")


def _ladder_queues(names: Names, ladder: Ladder, lane: str | None = None) -> Iterator[Queue]:
    for level, digit in _digits(ladder):
        ttl = ladder.ttl(level, digit)
        arguments = _quorum(ttl=ttl, dead_letter_to=_next_step(names, level, lane))
        yield Queue(names.ladder_queue(level, ttl, lane), arguments, role="ladder")


def _ladder_bindings(names: Names, ladder: Ladder, lane: str | None = None) -> Iterator[Binding]:
    for level, digit in _digits(ladder):
        queue = names.ladder_queue(level, ladder.ttl(level, digit), lane)
        yield Binding(names.ladder(level, lane), digit_key(level, digit), queue)
    for level in range(ladder.levels):
        yield Binding(names.ladder(level, lane), skip_key(level, None), _end_of_ladder(names, lane), "exchange")
        for lower in range(level):
            yield Binding(names.ladder(level, lane), skip_key(level, lower), names.ladder(lower, lane), "exchange")


def _digits(ladder: Ladder) -> Iterator[tuple[int, int]]:
    return ((level, digit) for level in range(ladder.levels) for digit in range(1, ladder.radix))


def _next_step(names: Names, level: int, lane: str | None) -> str:
    return names.ladder(level - 1, lane) if level else _end_of_ladder(names, lane)


def _end_of_ladder(names: Names, lane: str | None) -> str:
    """The cancelled gate; in a lane its relays come first, because behind the gate all messages share their path."""
    return names.cancelled_gate if lane is None else names.relay_of(lane)

"""From the model to the exchanges, queues and bindings that make it up: the picture in docs/topology.md, as code.

Every choice is a direct exchange; "else" is its alternate exchange. Reading `blueprint` top to bottom follows a message
from its request back to its origin.
"""

from __future__ import annotations

from collections.abc import Iterator

from tarry.core.ladder import Ladder
from tarry.core.names import ENTER_LADDER, Destination, Names, digit_key, enter_key, skip_key
from tarry.topology.model import Topology
from tarry.topology.objects import Arguments, Binding, Blueprint, Exchange, Queue

DELIVERY_LIMIT = 1_000_000
"""Explicit on every queue: from 4.0 on the default of 20 silently drops."""


def blueprint(topology: Topology) -> Blueprint:
    """What a broker needs to hold for this topology, without any destination."""
    names, ladder = topology.broker_names, topology.ladder_shape
    tiers = sorted(topology.rules.tiers)
    return Blueprint(
        exchanges=tuple(_exchanges(names, ladder)),
        queues=(*_service_queues(names), *_tier_queues(names, ladder, tiers), *_ladder_queues(names, ladder)),
        bindings=(
            *_way_home(names),
            *_ladder_bindings(names, ladder),
            *_tier_bindings(names, ladder, tiers),
            *_ways_in(names),
        ),
    )


def destination_blueprint(names: Names, destination: Destination) -> Blueprint:
    """What one attached destination needs: its own relay, a place to wait in a pause, and the last step home.

    The held queue is there from the start: whoever pauses at night may have a user that can declare nothing.
    """
    relay = relay_queue(names.relay_queue(destination), names)
    return Blueprint(
        exchanges=(),
        queues=(relay, held_queue(names, destination)) if destination.can_have_relay else (),
        bindings=(
            way_home(names, destination),
            *((Binding(names.relay, destination.key, relay.name),) if destination.can_have_relay else ()),
        ),
    )


def way_home(names: Names, destination: Destination) -> Binding:
    """The last step: from the deliver exchange to the origin."""
    return Binding(names.deliver, destination.key, destination.name, destination.kind)


def held_queue(names: Names, destination: Destination) -> Queue:
    """Where messages wait while their destination is paused. What is rejected there goes on home, with all its keys."""
    return Queue(names.held_queue(destination), _quorum(dead_letter_to=names.released_gate), role="held")


def relay_queue(name: str, names: Names) -> Queue:
    """A queue that nothing stays in: it keeps a sick destination from stalling the tiers of everyone else."""
    return Queue(name, _quorum(ttl=0, dead_letter_to=names.held_gate), role="relay")


def _quorum(
    *, ttl: int | None = None, dead_letter_to: str | None = None, overflow: str = "reject-publish"
) -> Arguments:
    return Arguments.of(
        x_queue_type="quorum",
        x_delivery_limit=DELIVERY_LIMIT,
        x_overflow=overflow,
        x_message_ttl=ttl,
        x_dead_letter_exchange=dead_letter_to,
        x_dead_letter_strategy="at-least-once" if dead_letter_to is not None else None,
    )


def _exchanges(names: Names, ladder: Ladder) -> Iterator[Exchange]:
    """Last first: an exchange never has an alternate that is not there yet."""

    def otherwise(exchange: str) -> Arguments:
        return Arguments.of(alternate_exchange=exchange)

    yield Exchange(names.unroutable, "fanout")
    yield Exchange(names.deliver, "direct", otherwise(names.unroutable))
    yield Exchange(names.arrive, "fanout")
    yield Exchange(names.held_gate, "direct", otherwise(names.arrive))
    yield Exchange(names.released_gate, "direct", otherwise(names.arrive))
    yield Exchange(names.relay_else, "fanout")
    yield Exchange(names.relay, "direct", otherwise(names.relay_else))
    yield Exchange(names.cancelled_gate, "direct", otherwise(names.relay))
    for level in range(ladder.levels):
        yield Exchange(names.ladder(level), "direct", otherwise(names.unroutable))
    yield Exchange(names.delay, "direct")
    yield Exchange(names.review, "fanout")
    yield Exchange(names.spool, "fanout")
    yield Exchange(names.reports, "fanout")
    yield Exchange(names.intake, "fanout")


def _service_queues(names: Names) -> Iterator[Queue]:
    # The tap and the cancelled must never reject, or every tier would stall behind them.
    never_rejects = _quorum(overflow="drop-head")
    yield Queue(names.unroutable, _quorum())
    yield Queue(names.audit, never_rejects, role="record")
    yield Queue(names.cancelled, never_rejects, role="record")
    yield Queue(names.review_queue, _quorum())
    # A request that carries an expiration of its own must not vanish because no router took it in time.
    yield Queue(names.scheduled, _quorum(dead_letter_to=names.review))
    yield relay_queue(names.relay, names)


def _way_home(names: Names) -> Iterator[Binding]:
    """From its end to its beginning. Delivery opens before the tap: in between, a message unproven beats one lost."""
    yield Binding(names.unroutable, "", names.unroutable)
    yield Binding(names.arrive, "", names.deliver, "exchange")
    yield Binding(names.arrive, "", names.audit)
    yield Binding(names.relay_else, "", names.relay)


def _ways_in(names: Names) -> Iterator[Binding]:
    yield Binding(names.spool, "", names.audit)
    yield Binding(names.reports, "", names.audit)
    yield Binding(names.review, "", names.review_queue)
    yield Binding(names.intake, "", names.scheduled)


def _tier_queues(names: Names, ladder: Ladder, tiers: list[int]) -> Iterator[Queue]:
    for ms in tiers:
        yield Queue(names.tier(ms), _quorum(ttl=ms, dead_letter_to=names.ladder(ladder.levels - 1)), role="tier")


def _tier_bindings(names: Names, ladder: Ladder, tiers: list[int]) -> Iterator[Binding]:
    for ms in tiers:
        yield Binding(names.delay, enter_key(ms), names.tier(ms))
    yield Binding(names.delay, ENTER_LADDER, names.ladder(ladder.levels - 1), "exchange")


def _ladder_queues(names: Names, ladder: Ladder) -> Iterator[Queue]:
    for level, digit in _digits(ladder):
        ttl = ladder.ttl(level, digit)
        arguments = _quorum(ttl=ttl, dead_letter_to=_next_step(names, level))
        yield Queue(names.ladder_tier(level, ttl), arguments, role="ladder")


def _ladder_bindings(names: Names, ladder: Ladder) -> Iterator[Binding]:
    for level, digit in _digits(ladder):
        yield Binding(names.ladder(level), digit_key(level, digit), names.ladder_tier(level, ladder.ttl(level, digit)))
    for level in range(ladder.levels):
        yield Binding(names.ladder(level), skip_key(level, None), names.cancelled_gate, "exchange")
        for lower in range(level):
            yield Binding(names.ladder(level), skip_key(level, lower), names.ladder(lower), "exchange")


def _digits(ladder: Ladder) -> Iterator[tuple[int, int]]:
    return ((level, digit) for level in range(ladder.levels) for digit in range(1, ladder.radix))


def _next_step(names: Names, level: int) -> str:
    return names.ladder(level - 1) if level else names.cancelled_gate

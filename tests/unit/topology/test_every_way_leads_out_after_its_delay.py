"""Keys and bindings are written apart and must agree: walked here as the broker does it, for any ladder and delay."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tarry.core.ladder import itinerary
from tarry.topology.blueprint import blueprint
from tarry.topology.objects import Blueprint
from tests.unit.topology.worlds import topology

LADDERS = st.builds(
    lambda radix, levels: {"granularity": "125ms", "radix": radix, "levels": levels},
    st.integers(4, 8),
    st.integers(4, 7),
)
DELAYS = st.integers(0, 300_000_000) | st.integers(0, 40_000)


def _walk(parts: Blueprint, keys: tuple[str, ...]) -> list[str]:
    """The queues from the delay exchange to the gate; at each exchange exactly one key must have a binding."""
    queues = {queue.name: queue for queue in parts.queues}
    at, waited = "retry.delay", []
    while at != "retry.gate.cancelled":
        (way,) = [one for one in parts.bindings if one.source == at and one.key in keys]
        at = way.destination
        if way.destination_type == "queue":
            waited.append(at)
            at = str(queues[at].dead_letters_to)
    return waited


def _ttl(parts: Blueprint, name: str) -> int:
    return int(next(queue.arguments.as_dict()["x-message-ttl"] for queue in parts.queues if queue.name == name))


@given(LADDERS, DELAYS, st.sampled_from([None, 2_000, 8_000]))
def test_a_message_waits_in_queues_that_add_up_to_its_delay(
    shape: dict[str, int], delay: int, base: int | None
) -> None:
    small = topology(ladder=shape)
    ladder, tiers = small.ladder_shape, small.rules.tiers
    assume(delay <= ladder.longest_ms)
    parts, way = blueprint(small), itinerary(ladder, delay, tiers, base)

    waited = _walk(parts, way.keys)

    assert sum(_ttl(parts, name) for name in waited) == way.delay_ms
    assert len(waited) == way.hops

"""Keys and bindings are written apart and must agree: walked here as the broker does it, for any ladder and delay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, combinations, permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tarry.core.ladder import first_queue, itinerary
from tarry.core.names import AUTOMATIC, Destination, Gate, Holder, Names, id_key
from tarry.operations.explain import queues_of
from tarry.topology.blueprint import blueprint, destination_blueprint, former_bindings, held_queue
from tarry.topology.objects import Binding, Blueprint, Queue
from tests.unit.topology.examples import topology

LADDERS = st.builds(
    lambda radix, levels: {"granularity": "125ms", "radix": radix, "levels": levels},
    st.integers(4, 8),
    st.integers(4, 7),
)
DELAYS = st.integers(0, 300_000_000) | st.integers(0, 40_000)


def _walk(parts: Blueprint, keys: tuple[str, ...], end: str = "retry.gate.cancelled") -> list[str]:
    """The queues from the delay exchange to the gate; at each exchange exactly one key must have a binding."""
    queues = {queue.name: queue for queue in parts.queues}
    at, waited = "retry.delay", []
    while at != end:
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
    assert len(waited) == len(way.waits(ladder))


@given(LADDERS, DELAYS, st.sampled_from([None, 2_000, 8_000]))
def test_a_message_of_a_lane_waits_in_its_queues_that_add_up_to_its_delay(
    shape: dict[str, int], delay: int, base: int | None
) -> None:
    policy = {"name": "p", "schedule": ["2s", "8s"], "max_retries": 2}
    small = topology(ladder=shape, policy=[policy | {"lane": "critical"}, policy | {"name": "q", "lane": "other"}])
    ladder, tiers = small.ladder_shape, small.rules.tiers_of("critical")
    assume(delay <= ladder.longest_ms)
    parts, way = blueprint(small), itinerary(ladder, delay, tiers, base, "critical")

    waited = _walk(parts, way.keys, "retry.relay~critical")

    assert sum(_ttl(parts, name) for name in waited) == way.delay_ms
    assert {NAMES.lane_of(name) for name in waited} <= {"critical"}
    assert waited == list(queues_of(way, NAMES, ladder))
    assert (first_queue(way, NAMES, ladder)) == (waited or ["retry.relay~critical"])[0]


NAMES = Names()
ORDERS = Destination("queue", "orders")
PAUSABLE: tuple[Holder, ...] = (ORDERS, AUTOMATIC, Gate("policy", "gold"), Gate("job-type", "pdf"))
OTHERS = (Destination("queue", "others"), Gate("policy", "plain"), Gate("job-type", "png"))
ID = id_key("r", 1)
KEYS = (ID, *(holder.key for holder in PAUSABLE))
MIXES = [*chain.from_iterable(combinations(PAUSABLE, size) for size in range(len(PAUSABLE) + 1))]


@dataclass
class Returning:
    """One due message on a broker with gates: bindings are made and removed as pause and resume do it."""

    keys: tuple[str, ...] = KEYS
    lane: str | None = None
    bindings: set[Binding] = field(default_factory=set)
    queues: dict[str, Queue] = field(default_factory=dict)
    at: Counter[str] = field(default_factory=Counter)
    """The queues with the message, and its copies in each."""
    states: dict[Holder, str] = field(default_factory=dict)
    returned_in_a_pause: bool = False

    def __post_init__(self) -> None:
        lanes = [] if self.lane is None else [self.lane]
        policy = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2, "lane": self.lane}
        whole = blueprint(topology(policy=[policy]))
        for parts in (whole, destination_blueprint(NAMES, ORDERS, lanes)):
            self.bindings |= set(parts.bindings)
            self.queues |= {queue.name: queue for queue in parts.queues}
        self.exchanges = {exchange.name: exchange for exchange in whole.exchanges}
        for holder in (*PAUSABLE, *OTHERS):
            queue = held_queue(NAMES, holder)
            self.queues[queue.name] = queue

    def come_due(self) -> None:
        """As the relay lets it go. It is the only one that the end of the ladder leads to."""
        if self.lane is not None:
            self._route(NAMES.relay_of(self.lane))
            assert self.at == Counter([NAMES.relay_queue(ORDERS, self.lane)])
            self.at.clear()
        self._route(str(self.queues[NAMES.relay_queue(ORDERS, self.lane)].dead_letters_to))

    def pause(self, holder: Holder) -> None:
        self.bindings |= {self._main(holder), self._recheck(holder)}
        self.states[holder] = "holding"

    def begin_release(self, holder: Holder) -> None:
        self.bindings.discard(self._recheck(holder))
        self.states[holder] = "releasing"

    def release(self, holder: Holder) -> None:
        """The service rejects what is in the held queue now."""
        queue = self.queues[NAMES.held_queue(holder)]
        if self.states.get(holder) == "releasing":
            for _ in range(self.at.pop(queue.name, 0)):
                self._route(str(queue.dead_letters_to))

    def end_release(self, holder: Holder) -> None:
        if self.states.get(holder) == "releasing" and not self.at[NAMES.held_queue(holder)]:
            self.bindings.discard(self._main(holder))
            del self.states[holder]

    def resume(self, holder: Holder) -> None:
        self.begin_release(holder)
        self.release(holder)
        self.end_release(holder)

    @property
    def copies(self) -> int:
        """All of them, without the one for the tap."""
        return self.at.total() - self.at["retry.audit"]

    def _main(self, holder: Holder) -> Binding:
        return Binding(NAMES.holding_exchange(holder), holder.key, NAMES.held_queue(holder))

    def _recheck(self, holder: Holder) -> Binding:
        return Binding(NAMES.rechecking_exchange(holder), holder.key, NAMES.held_queue(holder))

    def _route(self, exchange: str) -> None:
        """As the broker does it: each exchange is visited once, and each queue gets the message once."""
        seen, queues, todo = {exchange}, set[str](), [exchange]
        while todo:
            at = self.exchanges[todo.pop()]
            ways = [
                one for one in self.bindings if one.source == at.name and (at.type == "fanout" or one.key in self.keys)
            ]
            queues |= {way.destination for way in ways if way.destination_type == "queue"}
            onward = {way.destination for way in ways if way.destination_type == "exchange"}
            onward |= {at.alternate} if not ways and at.alternate is not None else set()
            todo += sorted(onward - seen)
            seen |= onward
        self.at.update(queues)
        self.returned_in_a_pause |= "orders" in queues and "holding" in self.states.values()


@pytest.mark.parametrize("lane", [None, "critical"])
@pytest.mark.parametrize("paused", MIXES, ids=lambda paused: " ".join(holder.key for holder in paused) or "none")
def test_a_message_is_held_once_and_returns_once_after_every_mix_of_pauses(
    paused: tuple[Holder, ...], lane: str | None
) -> None:
    for order in permutations(paused):
        returning = Returning(lane=lane)
        for holder in (*paused, *OTHERS):
            returning.pause(holder)
        returning.come_due()
        for holder in order:
            assert (returning.copies, returning.at["orders"], returning.at["retry.audit"]) == (1, 0, 0)
            returning.resume(holder)
        assert returning.at == Counter({"orders": 1, "retry.audit": 1})


START = st.tuples(*[st.sampled_from([(), ("pause",), ("pause", "begin_release")])] * len(PAUSABLE))
STEPS = st.lists(
    st.tuples(st.sampled_from(["pause", "begin_release", "release", "end_release"]), st.sampled_from(PAUSABLE))
    | st.tuples(st.just("resume"), st.sampled_from(PAUSABLE)),
    max_size=25,
)


@settings(max_examples=300)
@given(START, STEPS)
def test_a_message_returns_once_and_not_in_a_pause_however_pauses_overlap(
    start: tuple[tuple[str, ...], ...], after: list[tuple[str, Holder]]
) -> None:
    returning = Returning()

    def do(step: str, holder: Holder) -> None:
        if step == "pause" or holder in returning.states:
            getattr(returning, step)(holder)

    for holder, steps in zip(PAUSABLE, start, strict=True):
        for step in steps:
            do(step, holder)
    returning.come_due()
    for step, holder in [*after, *_everything_is_resumed()]:
        assert returning.copies == 1
        do(step, holder)
    assert not returning.returned_in_a_pause
    assert returning.at == Counter({"orders": 1, "retry.audit": 1})
    assert returning.states == {}


def _everything_is_resumed() -> list[tuple[str, Holder]]:
    begun = [("begin_release", holder) for holder in PAUSABLE]
    released = [("release", holder) for _ in PAUSABLE for holder in PAUSABLE]
    return [*begun, *released, *(("end_release", holder) for holder in PAUSABLE)]


def test_a_cancelled_message_of_a_lane_is_diverted_behind_its_relay() -> None:
    returning = Returning(lane="critical")
    returning.bindings.add(Binding("retry.lanes.cancelled", ID, "retry.cancelled"))
    returning.come_due()
    assert returning.at == Counter({"retry.cancelled": 1})


@pytest.mark.parametrize("holder", PAUSABLE, ids=lambda holder: holder.key)
def test_a_cancelled_message_leaves_every_held_queue_to_be_cancelled(holder: Holder) -> None:
    returning = Returning()
    returning.pause(holder)
    returning.come_due()
    for gate in (NAMES.cancelled_gate, NAMES.released_gate, NAMES.recheck_cancelled):
        returning.bindings.add(Binding(gate, ID, NAMES.cancelled))
    returning.resume(holder)
    assert returning.at == Counter({"retry.cancelled": 1})


def test_a_message_is_delivered_once_while_apply_replaces_the_former_bindings() -> None:
    returning = Returning()
    returning.bindings |= set(former_bindings(NAMES))
    returning.come_due()
    assert returning.at == Counter({"orders": 1, "retry.audit": 1})


def test_a_message_without_the_keys_of_gates_returns_by_its_destination_alone() -> None:
    returning = Returning(keys=(ID, ORDERS.key))
    for holder in PAUSABLE:
        returning.pause(holder)
    returning.come_due()
    assert returning.at == Counter({"retry.held.orders": 1})
    returning.resume(ORDERS)
    assert returning.at == Counter({"orders": 1, "retry.audit": 1})

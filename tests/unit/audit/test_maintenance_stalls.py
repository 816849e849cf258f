from __future__ import annotations

import pytest

from tarry.audit.depths import Depths, QueueDepth
from tarry.audit.maintenance import Stall, stalls
from tarry.core.names import Names

STUCK = QueueDepth(messages=5, ready=2)
EMPTY = QueueDepth()


def depths(**queues: QueueDepth) -> Depths:
    return Depths(Names(), {f"retry.{name.replace('_', '.')}": depth for name, depth in queues.items()})


def test_a_relay_names_its_destination() -> None:
    look = depths(relay=EMPTY, relay_orders=STUCK)
    assert stalls(look, look, {}, {}, {}) == [Stall("retry.relay.orders", 3, ("orders",))]


def test_the_shared_relay_names_those_that_messages_went_to_of_late() -> None:
    look = depths(relay=STUCK, relay_orders=EMPTY)
    recent = {("retry.delay.8s", "orders"): 9, ("retry.delay.8s", "mails"): 1}
    assert stalls(look, look, {}, recent, {}) == [Stall("retry.relay", 3, ("mails",))], "orders has its own"


def test_a_tier_names_those_it_owes_something() -> None:
    look = depths(delay_8s=STUCK)
    overdue = {("retry.delay.8s", "orders"): 4, ("retry.delay.1h", "mails"): 1}
    assert stalls(look, look, {}, {}, overdue) == [Stall("retry.delay.8s", 3, ("orders",))]


def test_what_comes_through_between_two_looks_is_traffic() -> None:
    look = depths(delay_8s=STUCK, ladder_2_8s=STUCK, relay=STUCK)
    between = {("retry.delay.8s", "orders"): 1}
    assert stalls(look, look, between, between, {}) == []


def test_what_one_look_alone_has_is_traffic_too() -> None:
    assert stalls(depths(delay_8s=EMPTY), depths(delay_8s=STUCK), {}, {}, {}) == []


def test_it_says_so_in_a_sentence() -> None:
    assert str(Stall("retry.relay.orders", 3, ("orders",))) == (
        "retry.relay.orders is stalled with 3 messages: orders does not accept them"
    )


def test_stalls_of_a_thousand_relays_look_at_each_name_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each message flow: that would be a million times, in the event loop of the router."""
    parsed: list[str] = []
    parse = Names.parse

    def counting(names: Names, queue: str) -> object:
        parsed.append(queue)
        return parse(names, queue)

    look = Depths(Names(), {"retry.delay.8s": EMPTY} | {f"retry.relay.q{number}": STUCK for number in range(1_000)})
    flow = {("retry.delay.8s", f"other{number}"): 1 for number in range(1_000)}
    monkeypatch.setattr(Names, "parse", counting)
    assert len(stalls(look, look, flow, flow, flow)) == 1_000
    assert len(parsed) < 10_000


def test_a_relay_of_a_lane_is_stalled_whatever_passes_the_others() -> None:
    look = Depths(
        Names(), {"retry.relay~gold.orders": STUCK, "retry.relay.orders": EMPTY, "retry.ladder~gold.1.2s": STUCK}
    )
    others = {("retry.delay.8s", "orders"): 9}
    assert [one.queue for one in stalls(look, look, others, {}, {})] == [
        "retry.ladder~gold.1.2s",
        "retry.relay~gold.orders",
    ]
    own = {("retry.delay~gold.8s", "orders"): 1}
    assert stalls(look, look, own, {}, {}) == []

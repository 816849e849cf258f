from __future__ import annotations

from tarry.core.names import Destination, Names
from tarry.topology.blueprint import blueprint, destination_blueprint
from tarry.topology.load import load, shipped
from tarry.topology.objects import Binding, Blueprint
from tests.unit.topology.examples import topology

ORDERS = Destination("queue", "orders")
SHIPPED = blueprint(load(shipped()))
SMALL = blueprint(topology())


def arguments(parts: Blueprint, name: str) -> dict[str, object]:
    return next(dict(queue.arguments) for queue in parts.queues if queue.name == name)


def test_a_tier_is_a_quorum_queue_that_loses_nothing() -> None:
    assert arguments(SHIPPED, "retry.delay.8s") == {
        "x-queue-type": "quorum",
        "x-message-ttl": 8_000,
        "x-dead-letter-exchange": "retry.ladder.6",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-delivery-limit": 1_000_000,
    }


def test_a_ladder_tier_expires_to_the_next_level_the_last_to_the_gate() -> None:
    assert arguments(SHIPPED, "retry.ladder.1.3s")["x-dead-letter-exchange"] == "retry.ladder.0"
    assert arguments(SHIPPED, "retry.ladder.0.375ms")["x-dead-letter-exchange"] == "retry.gate.cancelled"


def test_a_delay_beyond_the_brokers_longest_ttl_has_no_tier() -> None:
    schedule = {"name": "p", "schedule": ["1s", "49d", "50d"], "max_retries": 3}
    made = topology(policy=[schedule])
    assert made.rules.tiers == {1_000, 49 * 86_400_000}
    assert "retry.delay.1176h" in {queue.name for queue in blueprint(made).queues}


def test_a_message_between_two_legs_leaves_before_every_gate_of_a_pause() -> None:
    assert Binding("retry.relay", "~layover", "retry.layover") in SHIPPED.bindings
    assert arguments(SHIPPED, "retry.layover")["x-overflow"] == "reject-publish"


WITH_LANE = {"name": "p", "schedule": ["2s"], "max_retries": 2, "lane": "critical"}


def test_a_lane_adds_parts_and_changes_none() -> None:
    plain = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}
    made = blueprint(topology(policy=[WITH_LANE, plain]))
    assert set(SMALL.parts) <= set(made.parts)
    assert set(SMALL.bindings) <= set(made.bindings)
    added = {part.name for part in made.parts} - {part.name for part in SMALL.parts}
    assert {name for name in added if "~critical" not in name} == {"retry.lanes.cancelled"}
    assert len(added) == len(("tier", "relay", "relay.else", "gate")) + 4 * 3 + 4
    assert not [exchange for exchange in SMALL.exchanges if exchange.alternate == "retry.lanes.cancelled"]


def test_the_relays_of_a_lane_lead_to_the_gates_that_are_shared() -> None:
    made, attached = blueprint(topology(policy=[WITH_LANE])), destination_blueprint(Names(), ORDERS, ["critical"])
    assert arguments(made, "retry.relay~critical")["x-dead-letter-exchange"] == "retry.lanes.cancelled"
    assert arguments(attached, "retry.relay~critical.orders") == arguments(made, "retry.relay~critical")
    assert Binding("retry.relay~critical", "~to:orders", "retry.relay~critical.orders") in attached.bindings
    alternates = {exchange.name: exchange.alternate for exchange in made.exchanges}
    assert alternates["retry.relay~critical"] == "retry.relay.else~critical"
    assert alternates["retry.lanes.cancelled"] == "retry.gate.held"


def test_a_lane_has_the_tiers_of_its_policies_only() -> None:
    other = {"name": "o", "schedule": ["2s", "8s"], "max_retries": 2, "lane": "slow-1"}
    made = topology(policy=[WITH_LANE, other, {"name": "d", "schedule": ["1m"], "max_retries": 1}])
    tiers = sorted(queue.name for queue in blueprint(made).queues if queue.role == "tier")
    assert tiers == ["retry.delay.1m", "retry.delay~critical.2s", "retry.delay~slow-1.2s", "retry.delay~slow-1.8s"]


def test_what_expires_in_a_check_queue_passes_the_gates_again() -> None:
    policy = {"name": "p.1", "schedule": ["1s"], "max_retries": 3, "eligibility": {"at": "due", "answer_within": "30s"}}
    made = blueprint(topology(policy=[policy]))
    assert arguments(made, "retry.check.30s.p.1") == {
        "x-queue-type": "quorum",
        "x-message-ttl": 30_000,
        "x-dead-letter-exchange": "retry.recheck.cancelled",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-delivery-limit": 1_000_000,
    }
    assert made.bindings[-1] == Binding("retry.gate.check", "~check:30s:p%2E1", "retry.check.30s.p.1")
    alternates = {exchange.name: exchange.alternate for exchange in made.exchanges}
    assert alternates["retry.gate.check"] == "retry.gate.auto"
    assert "retry.gate.check" not in {alternates[name] for name in alternates if ".recheck." in name}
    assert Binding("retry.arrive", "", "retry.gate.check", "exchange") in made.bindings


def test_the_tap_never_rejects() -> None:
    assert arguments(SHIPPED, "retry.audit")["x-overflow"] == "drop-head"


def test_no_queue_ever_expires_and_none_has_a_length_limit() -> None:
    used = {key for queue in SHIPPED.queues for key, _ in queue.arguments}

    assert not used & {"x-expires", "x-max-length", "x-max-length-bytes", "x-dead-letter-routing-key"}


def test_the_shipped_topology_has_all_delay_tiers_and_49_ladder_tiers() -> None:
    roles = [queue.role for queue in SHIPPED.queues]

    assert roles.count("tier") == 29
    assert roles.count("ladder") == 49


def test_everything_that_is_named_exists_before_it_is_named() -> None:
    declared: set[str] = set()
    for exchange in SHIPPED.exchanges:
        assert exchange.alternate is None or exchange.alternate in declared
        declared.add(exchange.name)
    assert all(queue.dead_letters_to in declared | {None} for queue in SHIPPED.queues)
    queues = {queue.name for queue in SHIPPED.queues}
    assert all(
        binding.source in declared
        and binding.destination in (queues if binding.destination_type == "queue" else declared)
        for binding in SHIPPED.bindings
    )


def test_bindings_open_the_way_from_its_end_to_its_beginning() -> None:
    order = [binding.source for binding in SHIPPED.bindings]

    def last(source: str) -> int:
        return len(order) - 1 - order[::-1].index(source)

    assert last("retry.home") < last("retry.arrive") < last("retry.relay.else") < order.index("retry.ladder.0")
    assert last("retry.ladder.0") < last("retry.ladder.6") < order.index("retry.delay") < order.index("retry.intake")


def test_delivery_is_bound_before_the_tap_so_that_no_message_ends_there() -> None:
    from_home = [binding.destination for binding in SHIPPED.bindings if binding.source == "retry.home"]

    assert from_home == ["retry.deliver", "retry.audit"]


def test_each_level_leads_straight_to_every_lower_one_and_out() -> None:
    ways = [one for one in SMALL.bindings if one.source == "retry.ladder.3" and one.destination_type == "exchange"]

    assert ways == [
        Binding("retry.ladder.3", "~3>end", "retry.gate.cancelled", "exchange"),
        Binding("retry.ladder.3", "~3>0", "retry.ladder.0", "exchange"),
        Binding("retry.ladder.3", "~3>1", "retry.ladder.1", "exchange"),
        Binding("retry.ladder.3", "~3>2", "retry.ladder.2", "exchange"),
    ]
    assert Binding("retry.ladder.0", "~0>end", "retry.gate.cancelled", "exchange") in SMALL.bindings


def test_a_destination_has_a_relay_and_a_way_home() -> None:
    parts = destination_blueprint(Names(), Destination("queue", "orders"))

    assert [queue.name for queue in parts.queues] == ["retry.relay.orders", "retry.held.orders"]
    assert parts.bindings == (
        Binding("retry.deliver", "~to:orders", "orders"),
        Binding("retry.relay", "~to:orders", "retry.relay.orders"),
    )


def test_a_destination_with_too_long_a_name_gets_no_relay_of_its_own() -> None:
    parts = destination_blueprint(Names(), Destination("queue", "o" * 250))

    assert parts.queues == ()
    assert [binding.source for binding in parts.bindings] == ["retry.deliver"]


def test_a_time_scale_shortens_the_tiers_and_leaves_the_ladder_alone() -> None:
    names = {queue.name for queue in blueprint(topology(time_scale=0.1)).queues}

    assert {"retry.delay.200ms", "retry.delay.800ms", "retry.ladder.0.125ms"} <= names

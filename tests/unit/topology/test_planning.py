from __future__ import annotations

from tarry.topology.explain import explain_conflict, explain_difference
from tarry.topology.live import Live
from tarry.topology.objects import Binding, Exchange
from tarry.topology.plan import Plan, make_plan
from tests.unit.topology import worlds

WANTED = worlds.expected()
STANDING = worlds.live(WANTED.blueprint)


def plan(world: Live) -> Plan:
    return make_plan(WANTED.names, WANTED.blueprint, world)


def test_a_broker_that_matches_needs_nothing() -> None:
    assert plan(STANDING).nothing_to_do


def test_an_empty_broker_needs_everything_in_the_order_of_the_blueprint() -> None:
    assert plan(Live(worlds.MODERN)).missing == WANTED.blueprint


def test_a_deleted_queue_is_missing_with_its_binding() -> None:
    missing = plan(worlds.without_queue(STANDING, "retry.delay.8s")).missing

    assert [queue.name for queue in missing.queues] == ["retry.delay.8s"]
    assert missing.bindings == (Binding("retry.delay", "~in:8s", "retry.delay.8s"),)


def test_a_changed_argument_is_shown_with_both_values_and_the_way_to_migrate() -> None:
    world = worlds.with_argument(STANDING, "retry.delay.8s", "x-message-ttl", 7_000)
    (difference,) = plan(worlds.with_argument(world, "retry.delay.8s", "x-overflow", None)).different

    assert difference.details == {"x-message-ttl": (7_000, 8_000), "x-overflow": (None, "reject-publish")}
    assert explain_difference(WANTED.names, difference) == (
        "queue retry.delay.8s: x-message-ttl is 7000, should be 8000; x-overflow is not set, should be reject-publish. "
        "To migrate: `tarry topology drain retry.delay.8s`, then `tarry topology apply`"
    )


def test_a_tier_that_leads_nowhere_is_not_to_be_drained_because_that_would_lose_messages() -> None:
    world = worlds.with_argument(STANDING, "retry.delay.8s", "x-dead-letter-exchange", None)
    (difference,) = plan(world).different

    assert "move what it holds elsewhere" in explain_difference(WANTED.names, difference)


def test_another_level_needs_another_prefix_because_messages_carry_the_old_digits() -> None:
    taller = worlds.expected(ladder={"granularity": "125ms", "radix": 4, "levels": 5})
    found = make_plan(taller.names, taller.blueprint, STANDING)

    assert {difference.wanted.name for difference in found.different} == {"retry.delay.2s", "retry.delay.8s"}
    assert "choose another `names.prefix`" in explain_difference(taller.names, found.different[0])


def test_where_replicas_live_is_the_operators_choice_and_no_difference() -> None:
    world = worlds.with_argument(STANDING, "retry.audit", "x-quorum-initial-group-size", 5)

    assert plan(world).nothing_to_do


def test_an_exchange_of_another_type_or_alternate_is_different() -> None:
    changed = {"retry.deliver": Exchange("retry.deliver", "topic")}
    world = Live(worlds.MODERN, {**STANDING.exchanges, **changed}, STANDING.queues, STANDING.bindings)
    (difference,) = plan(world).different

    assert difference.details == {"alternate-exchange": (None, "retry.unroutable"), "type": ("topic", "direct")}
    assert "delete the exchange" in explain_difference(WANTED.names, difference)


def test_a_ladder_of_another_granularity_is_a_conflict_because_each_message_would_be_doubled() -> None:
    finer = worlds.expected(ladder={"granularity": "100ms", "radix": 4, "levels": 4})
    conflicts = make_plan(finer.names, finer.blueprint, STANDING).conflicts

    assert len(conflicts) == 12
    assert "with both, each message would be doubled" in explain_conflict(conflicts[0])


def test_a_retired_tier_is_left_over() -> None:
    fewer = worlds.expected(policy=[{"name": "default", "schedule": ["2s"], "max_retries": 2}])

    assert [part.name for part in make_plan(fewer.names, fewer.blueprint, STANDING).left_over] == ["retry.delay.8s"]


def test_relays_held_queues_cancels_and_other_installations_are_not_left_over() -> None:
    world = STANDING
    for name in ("retry.relay.orders", "retry.held.orders", "retry.b.delay.5s", "retry.delay.mine", "orders"):
        world = worlds.with_queue(world, type(STANDING.queues["retry.audit"])(name))
    world = worlds.with_binding(world, Binding("retry.deliver", "~to:orders", "orders"))
    world = worlds.with_binding(world, Binding("retry.gate.cancelled", "~id:1:1", "retry.cancelled"))

    assert plan(world).nothing_to_do

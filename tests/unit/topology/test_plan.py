from __future__ import annotations

from tarry.topology.live import Live
from tarry.topology.objects import Binding, Exchange, Queue
from tarry.topology.plan import Plan, explain_conflict, explain_difference, make_plan
from tests.unit.topology import examples

WANTED = examples.expected()
STANDING = examples.live(WANTED.blueprint)


def plan(live: Live) -> Plan:
    return make_plan(WANTED.names, WANTED.blueprint, live)


def test_a_broker_that_matches_needs_nothing() -> None:
    assert plan(STANDING).nothing_to_do


def test_an_empty_broker_needs_everything_in_the_order_of_the_blueprint() -> None:
    assert plan(Live(examples.MODERN)).missing == WANTED.blueprint


def test_a_deleted_queue_is_missing_with_its_binding() -> None:
    missing = plan(examples.without_queue(STANDING, "retry.delay.8s")).missing

    assert [queue.name for queue in missing.queues] == ["retry.delay.8s"]
    assert missing.bindings == (Binding("retry.delay", "~in:8s", "retry.delay.8s"),)


def test_a_changed_argument_is_shown_with_both_values_and_the_remedy() -> None:
    live = examples.with_argument(STANDING, "retry.delay.8s", "x-message-ttl", 7_000)
    (difference,) = plan(examples.with_argument(live, "retry.delay.8s", "x-overflow", None)).different

    assert difference.details == {"x-message-ttl": (7_000, 8_000), "x-overflow": (None, "reject-publish")}
    assert explain_difference(WANTED.names, difference) == (
        "queue retry.delay.8s: x-message-ttl is 7000, should be 8000; x-overflow is not set, should be reject-publish. "
        "To migrate: `tarry topology drain retry.delay.8s`, then `tarry topology apply`"
    )


def test_a_tier_without_dead_letter_exchange_must_not_be_drained() -> None:
    live = examples.with_argument(STANDING, "retry.delay.8s", "x-dead-letter-exchange", None)
    (difference,) = plan(live).different

    assert "move its messages elsewhere" in explain_difference(WANTED.names, difference)


def test_another_level_needs_another_prefix_for_messages_have_old_digits() -> None:
    taller = examples.expected(ladder={"granularity": "125ms", "radix": 4, "levels": 5})
    found = make_plan(taller.names, taller.blueprint, STANDING)

    assert {difference.wanted.name for difference in found.different} == {"retry.delay.2s", "retry.delay.8s"}
    assert "choose another `names.prefix`" in explain_difference(taller.names, found.different[0])


def test_where_replicas_live_is_the_operators_choice_and_no_difference() -> None:
    live = examples.with_argument(STANDING, "retry.audit", "x-quorum-initial-group-size", 5)

    assert plan(live).nothing_to_do


def test_an_exchange_of_another_type_or_alternate_is_different() -> None:
    changed = {"retry.deliver": Exchange("retry.deliver", "topic")}
    live = Live(examples.MODERN, {**STANDING.exchanges, **changed}, STANDING.queues, STANDING.bindings)
    (difference,) = plan(live).different

    assert difference.details == {"alternate-exchange": (None, "retry.unroutable"), "type": ("topic", "direct")}
    assert "delete the exchange" in explain_difference(WANTED.names, difference)


def test_a_ladder_of_another_granularity_is_a_conflict() -> None:
    finer = examples.expected(ladder={"granularity": "100ms", "radix": 4, "levels": 4})
    conflicts = make_plan(finer.names, finer.blueprint, STANDING).conflicts

    assert len(conflicts) == 12
    assert "with both, each message would be duplicated" in explain_conflict(conflicts[0])


def test_a_retired_tier_is_left_over() -> None:
    fewer = examples.expected(policy=[{"name": "default", "schedule": ["2s"], "max_retries": 2}])

    assert [part.name for part in make_plan(fewer.names, fewer.blueprint, STANDING).left_over] == ["retry.delay.8s"]


def test_relays_held_queues_cancels_and_other_installations_are_not_stale() -> None:
    live = STANDING
    for name in ("retry.relay.orders", "retry.held.orders", "retry.b.delay.5s", "retry.delay.mine", "orders"):
        live = examples.with_queue(live, type(STANDING.queues["retry.audit"])(name))
    live = examples.with_binding(live, Binding("retry.deliver", "~to:orders", "orders"))
    live = examples.with_binding(live, Binding("retry.gate.cancelled", "~id:1:1", "retry.cancelled"))

    assert plan(live).nothing_to_do


def test_an_attached_destination_gets_a_relay_in_a_lane_that_is_new() -> None:
    policy = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}
    lanes = examples.expected(policy=[policy | {"lane": "critical"}])
    relay = Queue("retry.relay.orders", STANDING.queues["retry.relay"].arguments)
    attached = examples.with_queue(STANDING, relay)
    attached = examples.with_binding(attached, Binding("retry.relay", "~to:orders", "retry.relay.orders"))

    missing = make_plan(lanes.names, lanes.blueprint, attached).missing

    assert missing.queues[-1].name == "retry.relay~critical.orders"
    assert missing.bindings[-1] == Binding("retry.relay~critical", "~to:orders", "retry.relay~critical.orders")
    assert plan(attached).nothing_to_do

from __future__ import annotations

from typing import Any

import pytest

from tarry.attach.listing import State
from tests.integration.attach.world import World

BOTH = pytest.mark.parametrize("kind", ["quorum", "classic"])


@BOTH
def test_a_reject_arrives_whole_in_retry_scheduled(world: World, kind: str) -> None:
    world.channel.exchange_declare("events", "topic", durable=True)
    world.declare("orders", kind)
    world.channel.queue_bind("orders", "events", "order.#")
    world.attach("orders")
    world.publish("order.new", b"one", "events", message_id="m-1", headers={"tenant": "a"})
    world.reject("orders")

    properties, body, key = world.take("retry.scheduled")

    assert (body, key, properties.message_id) == (b"one", "order.new", "m-1")
    headers: Any = properties.headers
    assert headers["tenant"] == "a"
    death = headers["x-death"][0]
    assert (death["queue"], death["reason"], death["exchange"]) == ("orders", "rejected", "events")


def test_a_delivery_that_is_never_settled_arrives_too(world: World) -> None:
    world.declare("orders")
    world.attach("orders", delivery_limit=2)
    world.publish("orders")
    for _ in range(3):
        world.reject("orders", requeue=True)

    properties, _, _ = world.take("retry.scheduled")

    headers: Any = properties.headers
    assert headers["x-death"][0]["reason"] == "delivery_limit"


@BOTH
def test_the_way_home_leads_through_the_relay_to_the_queue(world: World, kind: str) -> None:
    world.declare("orders", kind)
    world.attach("orders")
    world.publish("order.new", b"again", "retry.gate.cancelled", headers={"BCC": ["~to:orders"]})

    _, body, key = world.take("orders")

    assert (body, key) == (b"again", "order.new")
    assert world.take("retry.audit")[1] == b"again"


@BOTH
def test_the_users_own_policy_goes_on_within_ours(world: World, kind: str) -> None:
    world.declare("orders", kind)
    world.policy("team", "^orders$", 5, max_length=2)
    world.attach("orders")
    assert world.applied_policy("orders") == "tarry.orders"

    for number in range(3):
        world.publish("orders", f"{number}".encode())

    # Its limit of two still holds, and what it pushes out has become a dead letter.
    properties, body, _ = world.take("retry.scheduled")
    assert body == b"0"
    headers: Any = properties.headers
    assert headers["x-death"][0]["reason"] == "maxlen"
    assert world.depth("orders") == 2


def test_queues_of_both_types_under_one_policy_both_work(world: World) -> None:
    """One policy for both would be void for the classic one: it would carry quorum-only keys."""
    world.declare("orders.a", "quorum")
    world.declare("orders.b", "classic")
    world.policy("team", "^orders", message_ttl=600_000)
    world.attach("orders.*")
    for queue in ("orders.a", "orders.b"):
        world.publish(queue)
        world.reject(queue)
        world.take("retry.scheduled")
        assert world.applied_policy(queue) == f"tarry.{queue}"


def test_a_name_with_signs_and_a_name_too_long_for_a_relay_work(world: World) -> None:
    strange, long = "a.b+c (d)/é#%~ $", "x" * 250
    for name in (strange, long):
        world.declare(name)
        world.attach(name)
        world.publish(name)
        world.reject(name)
        world.take("retry.scheduled")
    assert {found.state for found in world.states().values()} == {State.OK}
    assert f"retry.relay.{strange}" in world.survey().live.queues
    assert f"retry.relay.{long[:10]}" not in "".join(world.survey().live.queues)


def test_attach_may_be_repeated(world: World) -> None:
    world.declare("orders")
    world.policy("team", "^orders$", max_length=10)
    world.attach("orders")
    before = world.everything()
    (plan,) = world.attach("orders")
    assert plan.nothing_to_do
    assert world.everything() == before


def test_a_consumer_timeout_is_a_policy_key_where_the_broker_takes_one(world: World) -> None:
    for kind in ("quorum", "classic"):
        world.declare(kind, kind)
        (plan,) = world.attach(kind, consumer_timeout_ms=1_800_000)
        assert plan.policy is not None
        assert ("consumer-timeout" in plan.policy.definition) == (world.survey().version >= (3, 12))
        assert world.applied_policy(kind) == f"tarry.{kind}"

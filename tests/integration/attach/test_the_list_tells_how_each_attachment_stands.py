from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry.attach.listing import State
from tarry.core.names import Destination
from tests.integration.attach.world import World


def change_the_users_policy(world: World) -> None:
    world.policy("team", "^orders$", 5, max_length=7)


def put_a_stronger_one_above(world: World) -> None:
    world.policy("boss", "^orders$", 99, max_length=7)


def delete_our_policy(world: World) -> None:
    world.management.delete_policy("tarry.orders")


def unbind(world: World) -> None:
    world.channel.queue_unbind("orders", "retry.deliver", Destination("queue", "orders").key)


def declare_the_queue_anew(world: World) -> None:
    world.channel.queue_delete("orders")
    world.declare("orders")


def delete_the_queue(world: World) -> None:
    world.channel.queue_delete("orders")


def delete_the_relay(world: World) -> None:
    world.channel.queue_delete("retry.relay.orders")


CHANGES = [
    (change_the_users_policy, State.DRIFTED),
    (put_a_stronger_one_above, State.OVERRIDDEN),
    (delete_our_policy, State.POLICY_GONE),
    (unbind, State.BINDING_GONE),
    (declare_the_queue_anew, State.BINDING_GONE),
    (delete_the_relay, State.BINDING_GONE),
    (delete_the_queue, State.GONE),
]


@pytest.mark.parametrize(("change", "state"), CHANGES)
def test_each_change_is_seen_and_attach_mends_it(world: World, change: Callable[[World], None], state: State) -> None:
    world.declare("orders")
    world.policy("team", "^orders$", 5, max_length=10)
    world.attach("orders")
    assert world.states()["orders"].state is State.OK

    change(world)

    found = world.states()["orders"]
    assert found.state is state
    assert "tarry attach orders" in found.detail
    if state is State.GONE:
        world.declare("orders")
    world.attach("orders")
    assert world.states()["orders"].state is State.OK
    world.publish("orders")
    world.reject("orders")
    world.take("retry.scheduled")


def test_a_changed_policy_is_taken_over_by_the_next_attach(world: World) -> None:
    world.declare("orders", "classic")
    world.policy("team", "^orders$", max_length=10)
    world.attach("orders")
    world.policy("team", "^orders$", max_length=1)
    world.attach("orders")
    world.publish("orders")
    world.publish("orders")
    world.take("retry.scheduled")
    assert world.depth("orders") == 1

from __future__ import annotations

import pytest

from tarry.attach.detach import detach
from tarry.attach.listing import State
from tests.integration.attach.world import World

CHANGES = pytest.mark.parametrize(("before", "after"), [("quorum", "classic"), ("classic", "quorum")])


def declare_again(world: World, kind: str) -> None:
    world.channel.queue_delete("orders")
    world.declare("orders", kind)


def assert_a_reject_arrives(world: World) -> None:
    world.publish("orders")
    world.reject("orders")
    world.take("retry.scheduled")


@CHANGES
def test_attach_holds_when_the_queue_changes_its_type(world: World, before: str, after: str) -> None:
    world.declare("orders", before)
    world.attach("orders")
    declare_again(world, after)
    assert_a_reject_arrives(world)
    world.policy("unrelated", "^nothing$", max_length=1)  # the broker assigns all policies again at any change
    assert_a_reject_arrives(world)
    declare_again(world, before)
    assert_a_reject_arrives(world)


@CHANGES
def test_attach_keeps_the_users_keys_when_the_queue_changes_its_type(world: World, before: str, after: str) -> None:
    world.declare("orders", before)
    world.policy("team", "^orders$", 7, message_ttl=1)
    world.attach("orders")
    declare_again(world, after)
    world.publish("orders")
    properties, _, _ = world.take("retry.scheduled")
    assert properties.headers is not None
    assert properties.headers["x-first-death-reason"] == "expired"


@CHANGES
def test_list_tells_a_change_of_type_and_attach_mends_it(world: World, before: str, after: str) -> None:
    world.declare("orders", before)
    world.attach("orders")
    declare_again(world, after)
    assert world.states()["orders"].state in (State.TYPE_CHANGED, State.BINDING_GONE)
    world.attach("orders")
    assert world.states()["orders"].state is State.OK
    assert world.applied_policy("orders") == "tarry.orders"
    declare_again(world, before)
    assert_a_reject_arrives(world)


@CHANGES
def test_detach_removes_the_fallback_policy_too(
    world: World, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
    world.declare("orders", before)
    nothing = world.everything()
    world.attach("orders")
    declare_again(world, after)
    (plan,) = detach(world.topology, world.address, queues=["orders"], force=True)
    assert plan.parts[:2] == ["policy  tarry-fallback.orders", "policy  tarry.orders"]
    assert world.everything() == nothing
    assert world.applied_policy("orders") is None


def test_list_tells_a_fallback_policy_that_is_gone(world: World) -> None:
    world.declare("orders")
    world.attach("orders")
    world.management.delete_policy("tarry-fallback.orders")
    found = world.states()["orders"]
    assert found.state is State.DRIFTED
    assert "tarry-fallback.orders" in found.detail
    world.attach("orders")
    assert world.states()["orders"].state is State.OK


def test_list_tells_an_argument_that_beats_the_policy(world: World) -> None:
    world.declare("orders")
    world.attach("orders")
    world.channel.queue_delete("orders")
    world.declare("orders", x_dead_letter_exchange="elsewhere")
    found = world.states()["orders"]
    assert found.state is State.OVERRIDDEN
    assert "x-dead-letter-exchange='elsewhere'" in found.detail

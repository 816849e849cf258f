from __future__ import annotations

from typing import Any

import pytest
from pika.exceptions import NackError

from tarry.attach.detach import DetachPlan, detach
from tarry.errors import BrokerError
from tests.harness.waiting import wait_for
from tests.integration.attach.world import World

BOTH = pytest.mark.parametrize("kind", ["quorum", "classic"])


@pytest.fixture
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is under way there is nothing to wait for."""
    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)


def take_back(world: World, *queues: str, **options: Any) -> list[DetachPlan]:
    return detach(world.topology, world.address, queues=queues, **options)


def fill(world: World, queue: str) -> None:
    """A quorum queue applies its limit after the fact: it is full when it says so, not when it should."""
    confirming = world.channel.connection.channel()
    confirming.confirm_delivery()

    def refused() -> bool:
        try:
            confirming.basic_publish("", queue, b"filler")
        except NackError:
            return True
        return False

    wait_for(refused, what=f"{queue} to be full")


@BOTH
@pytest.mark.usefixtures("_no_settling")
def test_the_users_policy_applies_again_and_nothing_of_ours_is_left(world: World, kind: str) -> None:
    world.declare("orders", kind)
    world.channel.exchange_declare("graveyard", "fanout", durable=True)
    world.channel.queue_bind(world.declare("dead"), "graveyard")
    world.policy("team", "^orders$", 3, dead_letter_exchange="graveyard")
    before = world.everything()
    world.attach("orders", replace_dead_letter=True)

    (plan,) = take_back(world, "orders")

    assert plan.kept == ()
    assert world.everything() == before
    assert world.applied_policy("orders") == "team"
    world.publish("orders", b"dead")
    world.reject("orders")
    assert world.take("dead")[1] == b"dead"
    assert world.depth("retry.scheduled") == 0


def test_the_way_home_stays_while_a_retry_may_be_under_way(world: World) -> None:
    world.declare("orders")
    world.attach("orders")
    world.publish("orders")
    world.reject("orders")
    wait_for(lambda: world.depth("retry.scheduled"), what="the reject in retry.scheduled")

    (plan,) = take_back(world, "orders")

    assert "retry.scheduled (1)" in plan.kept[0]
    assert world.applied_policy("orders") is None
    world.publish("order.new", b"late", "retry.gate.cancelled", headers={"BCC": ["~to:orders"]})
    assert world.take("orders")[1] == b"late"

    (plan,) = take_back(world, "orders", force=True)

    assert plan.kept == ()
    assert not [binding for binding in world.survey().live.bindings if binding.destination == "orders"]


def test_a_relay_that_still_holds_messages_is_not_deleted(world: World) -> None:
    """A full destination: the relay's messages wait where a passive declare does not count them."""
    world.declare("orders", x_max_length=1, x_overflow="reject-publish")
    world.attach("orders")
    fill(world, "orders")
    for _ in range(5):
        world.publish("x", b"late", "retry.gate.cancelled", headers={"BCC": ["~to:orders"]})
    wait_for(lambda: world.survey().live.depths["retry.relay.orders"], what="stuck messages in the relay")
    assert world.depth("retry.relay.orders") == 0

    (plan,) = take_back(world, "orders")

    assert [text.split(":")[0] for text in plan.kept] == ["retry.relay.orders", "retry.deliver ─~to"]
    assert world.survey().live.depths["retry.relay.orders"] > 0


@pytest.mark.usefixtures("_no_settling")
def test_a_queue_that_is_gone_can_be_detached_too(world: World) -> None:
    world.declare("orders")
    before = world.everything()
    world.attach("orders")
    world.channel.queue_delete("orders")
    take_back(world, "ord*")
    world.declare("orders")
    assert world.everything() == before


def test_what_was_never_attached_is_no_mistake(world: World) -> None:
    world.declare("orders")
    (plan,) = take_back(world, "orders")
    assert plan.nothing_to_do


@pytest.mark.usefixtures("_no_settling")
def test_a_policy_of_another_installation_is_left_alone(world: World) -> None:
    world.declare("orders")
    world.policy("tarry.orders", "^orders$(?#tarry attach; base=-; own=)", 1, dead_letter_exchange="other.intake")
    take_back(world, "orders")
    assert world.applied_policy("orders") == "tarry.orders"


def test_rejects_that_wait_to_leave_the_queue_are_not_dropped_with_the_policy(world: World) -> None:
    """Measured: the broker empties a quorum queue's dead-letter buffer when at-least-once ends."""
    world.declare("orders")
    world.attach("orders")
    world.policy("full", r"^retry\.scheduled$", max_length=1)
    fill(world, "retry.scheduled")
    for _ in range(4):
        world.publish("orders")
        world.reject("orders")
    wait_for(lambda: world.survey().queues["orders"].stuck == 4, what="rejects stuck in the buffer")

    (plan,) = take_back(world, "orders")

    assert "4 rejects wait" in plan.kept[0]
    assert world.states()["orders"].state == "ok"
    assert world.survey().queues["orders"].stuck == 4

    world.policy("team", "^orders$", max_length=1000)
    with pytest.raises(BrokerError, match="4 rejects wait in it"):
        world.attach("orders")


@pytest.mark.usefixtures("_no_settling")
def test_the_place_of_a_pause_stays_while_it_lasts(world: World) -> None:
    world.declare("orders")
    world.attach("orders")
    world.channel.queue_bind("retry.held.orders", "retry.gate.held", "~to:orders")

    (plan,) = take_back(world, "orders")

    assert plan.kept == ("retry.held.orders: returns are paused; run `tarry resume orders`, then detach again",)
    world.channel.queue_unbind("retry.held.orders", "retry.gate.held", "~to:orders")
    (plan,) = take_back(world, "orders")
    assert plan.parts == ["queue   retry.held.orders"]

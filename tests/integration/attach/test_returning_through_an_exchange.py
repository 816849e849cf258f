"""A message that comes home through its exchange carries tarry's keys; only its own may decide who gets it."""

from __future__ import annotations

import pytest

from tarry.attach.detach import detach
from tarry.attach.remarks import Level
from tarry.core.names import Destination
from tests.harness.waiting import wait_for
from tests.integration.attach.world import World

VIA = Destination("exchange", "app.events").key
OUR_KEYS = [VIA, "~6>end", "~id:00000000:1"]


@pytest.fixture
def events(world: World) -> str:
    world.channel.exchange_declare(
        "app.events", "topic", durable=True, arguments={"alternate-exchange": "retry.unroutable"}
    )
    return "app.events"


def bind(world: World, key: str, queue: str = "orders") -> None:
    world.channel.queue_bind(world.declare(queue, "classic"), "app.events", key)


def come_home(world: World, key: str) -> None:
    world.publish(key, b"again", "retry.gate.cancelled", headers={"BCC": OUR_KEYS})
    wait_for(lambda: world.depth("retry.audit"), what="the tap to see it")


def test_a_message_is_routed_anew_by_its_own_key(world: World, events: str) -> None:
    bind(world, "order.*")
    bind(world, "invoice.*", "invoices")
    (plan,) = world.attach(exchanges=(events,))
    assert not plan.refused
    come_home(world, "order.new")
    assert world.take("orders")[1:] == (b"again", "order.new")
    assert world.depth("invoices") == 0
    assert world.states()[events].state == "ok"


def test_a_queue_that_takes_everything_gets_it_once(world: World, events: str) -> None:
    """Which is why `#` is no reason to refuse: it takes each message anyway, and one copy whatever the keys."""
    bind(world, "#", "everything")
    (plan,) = world.attach(exchanges=(events,))
    assert not plan.refused
    come_home(world, "order.new")
    world.take("everything")
    assert world.depth("everything") == 0


@pytest.mark.parametrize("key", ["*", "#.*", "*.#"])
def test_a_queue_that_takes_any_one_word_would_get_it_for_our_key_so_it_is_refused(
    world: World, events: str, key: str
) -> None:
    bind(world, key, "words")
    before = world.everything()
    (plan,) = world.attach(exchanges=(events,))
    assert f"app.events ─{key}▶ queue words" in plan.texts(Level.REFUSAL)[0]
    assert world.everything() == before


def test_the_refusal_is_right_about_the_broker(world: World, events: str) -> None:
    bind(world, "order.*")
    world.attach(exchanges=(events,))
    bind(world, "*", "words")
    come_home(world, "order.new")
    assert world.take("words")[2] == "order.new"


def test_a_message_that_matches_nothing_goes_to_the_alternate_exchange(world: World, events: str) -> None:
    bind(world, "order.*")
    world.attach(exchanges=(events,))
    come_home(world, "invoice.new")
    assert world.take("retry.unroutable")[1] == b"again"


def test_an_exchange_can_be_detached(world: World, events: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
    before = world.everything()
    world.attach(exchanges=(events,))
    assert world.everything() != before
    detach(world.topology, world.address, queues=(), exchanges=("app.*",))
    assert world.everything() == before

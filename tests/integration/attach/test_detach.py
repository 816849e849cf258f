from __future__ import annotations

from typing import Any

import pytest
from pika.exceptions import NackError

from tarry.attach.detach import DetachPlan, detach
from tarry.errors import BrokerError
from tests.integration.attach.installation import AttachInstallation
from tests.support.waiting import wait_for

BOTH = pytest.mark.parametrize("kind", ["quorum", "classic"])


def take_back(installation: AttachInstallation, *queues: str, **options: Any) -> list[DetachPlan]:
    return detach(installation.topology, installation.address, queues=queues, **options)


def fill(installation: AttachInstallation, queue: str) -> None:
    """A quorum queue applies its limit after the fact: it is full when it says so, not when it should."""
    confirming = installation.channel.connection.channel()
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
def test_the_users_policy_applies_again_and_nothing_of_ours_is_left(
    installation: AttachInstallation, kind: str
) -> None:
    installation.declare("orders", kind)
    installation.channel.exchange_declare("graveyard", "fanout", durable=True)
    installation.channel.queue_bind(installation.declare("dead"), "graveyard")
    installation.policy("team", "^orders$", 3, dead_letter_exchange="graveyard")
    before = installation.everything()
    installation.attach("orders", replace_dead_letter=True)

    (plan,) = take_back(installation, "orders")

    assert plan.kept == ()
    assert installation.everything() == before
    assert installation.applied_policy("orders") == "team"
    installation.publish("orders", b"dead")
    installation.reject("orders")
    assert installation.take("dead")[1] == b"dead"
    assert installation.depth("retry.scheduled") == 0


def test_the_way_home_stays_while_a_retry_may_be_under_way(
    installation: AttachInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first detach waits as long as it does for users: the broker counts the reject only some seconds later."""
    installation.declare("orders")
    installation.attach("orders")
    installation.publish("orders")
    installation.reject("orders")
    wait_for(lambda: installation.depth("retry.scheduled"), what="the reject in retry.scheduled")

    (plan,) = take_back(installation, "orders")

    assert "retry.scheduled (1)" in plan.kept[0]
    assert installation.applied_policy("orders") is None
    installation.publish("order.new", b"late", "retry.gate.cancelled", headers={"BCC": ["~to:orders"]})
    assert installation.take("orders")[1] == b"late"

    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
    (plan,) = take_back(installation, "orders", force=True)

    assert plan.kept == ()
    assert not [binding for binding in installation.snapshot().live.bindings if binding.destination == "orders"]


@pytest.mark.usefixtures("_no_settling")
def test_a_relay_that_still_has_messages_is_not_deleted(installation: AttachInstallation) -> None:
    """A full destination: the relay's messages wait where a passive declare does not count them."""
    installation.declare("orders", x_max_length=1, x_overflow="reject-publish")
    installation.attach("orders")
    fill(installation, "orders")
    for _ in range(5):
        installation.publish("x", b"late", "retry.gate.cancelled", headers={"BCC": ["~to:orders"]})
    wait_for(lambda: installation.snapshot().live.depths["retry.relay.orders"], what="stuck messages in the relay")
    assert installation.depth("retry.relay.orders") == 0

    (plan,) = take_back(installation, "orders")

    assert [text.split(":")[0] for text in plan.kept] == ["retry.relay.orders", "retry.deliver ─~to"]
    assert installation.snapshot().live.depths["retry.relay.orders"] > 0


@pytest.mark.usefixtures("_no_settling")
def test_a_queue_that_is_gone_can_be_detached_too(installation: AttachInstallation) -> None:
    installation.declare("orders")
    before = installation.everything()
    installation.attach("orders")
    installation.channel.queue_delete("orders")
    take_back(installation, "ord*")
    installation.declare("orders")
    assert installation.everything() == before


def test_what_was_never_attached_is_no_mistake(installation: AttachInstallation) -> None:
    installation.declare("orders")
    (plan,) = take_back(installation, "orders")
    assert plan.nothing_to_do


@pytest.mark.usefixtures("_no_settling")
def test_a_policy_of_another_installation_is_left_alone(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.policy(
        "tarry.orders", "^orders$(?#tarry attach; base=-; own=)", 1, dead_letter_exchange="other.intake"
    )
    take_back(installation, "orders")
    assert installation.applied_policy("orders") == "tarry.orders"


def test_rejects_that_wait_in_the_queue_are_not_dropped_with_the_policy(installation: AttachInstallation) -> None:
    """Measured: the broker empties a quorum queue's dead-letter buffer when at-least-once ends."""
    installation.declare("orders")
    installation.attach("orders")
    installation.policy("full", r"^retry\.scheduled$", max_length=1)
    fill(installation, "retry.scheduled")
    for _ in range(4):
        installation.publish("orders")
        installation.reject("orders")
    wait_for(lambda: installation.snapshot().queues["orders"].stuck == 4, what="rejects stuck in the buffer")

    (plan,) = take_back(installation, "orders")

    assert "4 rejects wait" in plan.kept[0]
    assert installation.attachments()["orders"].state == "ok"
    assert installation.snapshot().queues["orders"].stuck == 4

    installation.policy("team", "^orders$", max_length=1000)
    with pytest.raises(BrokerError, match="4 rejects wait in it"):
        installation.attach("orders")


@pytest.mark.usefixtures("_no_settling")
def test_the_place_of_a_pause_stays_while_it_lasts(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.attach("orders")
    installation.channel.queue_bind("retry.held.orders", "retry.gate.held", "~to:orders")

    (plan,) = take_back(installation, "orders")

    assert plan.kept == ("retry.held.orders: returns are paused; run `tarry resume orders`, then detach again",)
    installation.channel.queue_unbind("retry.held.orders", "retry.gate.held", "~to:orders")
    (plan,) = take_back(installation, "orders")
    assert plan.parts == ["queue   retry.held.orders"]

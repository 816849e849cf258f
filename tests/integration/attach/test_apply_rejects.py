from __future__ import annotations

from typing import Any

import pytest

from tarry.attach.listing import AttachmentState
from tests.integration.attach.installation import AttachInstallation

BOTH = pytest.mark.parametrize("kind", ["quorum", "classic"])


@BOTH
def test_a_reject_arrives_whole_in_retry_scheduled(installation: AttachInstallation, kind: str) -> None:
    installation.channel.exchange_declare("events", "topic", durable=True)
    installation.declare("orders", kind)
    installation.channel.queue_bind("orders", "events", "order.#")
    installation.attach("orders")
    installation.publish("order.new", b"one", "events", message_id="m-1", headers={"tenant": "a"})
    installation.reject("orders")

    properties, body, key = installation.take("retry.scheduled")

    assert (body, key, properties.message_id) == (b"one", "order.new", "m-1")
    headers: Any = properties.headers
    assert headers["tenant"] == "a"
    death = headers["x-death"][0]
    assert (death["queue"], death["reason"], death["exchange"]) == ("orders", "rejected", "events")


def test_a_delivery_that_is_never_settled_arrives_too(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.attach("orders", delivery_limit=2)
    installation.publish("orders")
    for _ in range(3):
        installation.reject("orders", requeue=True)

    properties, _, _ = installation.take("retry.scheduled")

    headers: Any = properties.headers
    assert headers["x-death"][0]["reason"] == "delivery_limit"


@BOTH
def test_the_way_home_leads_through_the_relay_to_the_queue(installation: AttachInstallation, kind: str) -> None:
    installation.declare("orders", kind)
    installation.attach("orders")
    installation.publish("order.new", b"again", "retry.gate.cancelled", headers={"BCC": ["~to:orders"]})

    _, body, key = installation.take("orders")

    assert (body, key) == (b"again", "order.new")
    assert installation.take("retry.audit")[1] == b"again"


@BOTH
def test_the_users_own_policy_goes_on_within_ours(installation: AttachInstallation, kind: str) -> None:
    installation.declare("orders", kind)
    installation.policy("team", "^orders$", 5, max_length=2)
    installation.attach("orders")
    assert installation.applied_policy("orders") == "tarry.orders"

    for number in range(3):
        installation.publish("orders", f"{number}".encode())

    # Its limit of two is still in effect, and what it pushes out has become a dead letter.
    properties, body, _ = installation.take("retry.scheduled")
    assert body == b"0"
    headers: Any = properties.headers
    assert headers["x-death"][0]["reason"] == "maxlen"
    assert installation.depth("orders") == 2


def test_queues_of_both_types_under_one_policy_both_work(installation: AttachInstallation) -> None:
    """One policy for both would be void for the classic one: it would carry quorum-only keys."""
    installation.declare("orders.a", "quorum")
    installation.declare("orders.b", "classic")
    installation.policy("team", "^orders", message_ttl=600_000)
    installation.attach("orders.*")
    for queue in ("orders.a", "orders.b"):
        installation.publish(queue)
        installation.reject(queue)
        installation.take("retry.scheduled")
        assert installation.applied_policy(queue) == f"tarry.{queue}"


def test_a_name_with_signs_and_a_name_too_long_for_a_relay_work(installation: AttachInstallation) -> None:
    strange, long = "a.b+c (d)/é#%~ $", "x" * 250
    for name in (strange, long):
        installation.declare(name)
        installation.attach(name)
        installation.publish(name)
        installation.reject(name)
        installation.take("retry.scheduled")
    assert {found.state for found in installation.attachments().values()} == {AttachmentState.OK}
    assert f"retry.relay.{strange}" in installation.snapshot().live.queues
    assert f"retry.relay.{long[:10]}" not in "".join(installation.snapshot().live.queues)


def test_attach_may_be_repeated(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.policy("team", "^orders$", max_length=10)
    installation.attach("orders")
    before = installation.everything()
    (plan,) = installation.attach("orders")
    assert plan.nothing_to_do
    assert installation.everything() == before


def test_a_consumer_timeout_is_a_policy_key_where_the_broker_takes_one(installation: AttachInstallation) -> None:
    for kind in ("quorum", "classic"):
        installation.declare(kind, kind)
        (plan,) = installation.attach(kind, consumer_timeout_ms=1_800_000)
        assert plan.policy is not None
        takes_one = installation.snapshot().version >= (3, 12) and (
            kind == "quorum" or installation.snapshot().version < (4, 3)
        )
        assert ("consumer-timeout" in plan.policy.definition) == takes_one
        assert installation.applied_policy(kind) == f"tarry.{kind}"

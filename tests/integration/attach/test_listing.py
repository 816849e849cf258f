from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry.attach.listing import AttachmentState
from tarry.core.names import Destination
from tests.integration.attach.installation import AttachInstallation


def change_the_users_policy(installation: AttachInstallation) -> None:
    installation.policy("team", "^orders$", 5, max_length=7)


def put_a_stronger_one_above(installation: AttachInstallation) -> None:
    installation.policy("boss", "^orders$", 99, max_length=7)


def delete_our_policy(installation: AttachInstallation) -> None:
    installation.management.delete_policy("tarry.orders")


def unbind(installation: AttachInstallation) -> None:
    installation.channel.queue_unbind("orders", "retry.deliver", Destination("queue", "orders").key)


def declare_the_queue_anew(installation: AttachInstallation) -> None:
    installation.channel.queue_delete("orders")
    installation.declare("orders")


def delete_the_queue(installation: AttachInstallation) -> None:
    installation.channel.queue_delete("orders")


def delete_the_relay(installation: AttachInstallation) -> None:
    installation.channel.queue_delete("retry.relay.orders")


CHANGES = [
    (change_the_users_policy, AttachmentState.DRIFTED),
    (put_a_stronger_one_above, AttachmentState.OVERRIDDEN),
    (delete_our_policy, AttachmentState.POLICY_GONE),
    (unbind, AttachmentState.BINDING_GONE),
    (declare_the_queue_anew, AttachmentState.BINDING_GONE),
    (delete_the_relay, AttachmentState.BINDING_GONE),
    (delete_the_queue, AttachmentState.GONE),
]


@pytest.mark.parametrize(("change", "state"), CHANGES)
def test_each_change_is_seen_and_attach_mends_it(
    installation: AttachInstallation, change: Callable[[AttachInstallation], None], state: AttachmentState
) -> None:
    installation.declare("orders")
    installation.policy("team", "^orders$", 5, max_length=10)
    installation.attach("orders")
    assert installation.attachments()["orders"].state is AttachmentState.OK

    change(installation)

    found = installation.attachments()["orders"]
    assert found.state is state
    assert "tarry attach orders" in found.detail
    if state is AttachmentState.GONE:
        installation.declare("orders")
    installation.attach("orders")
    assert installation.attachments()["orders"].state is AttachmentState.OK
    installation.publish("orders")
    installation.reject("orders")
    installation.take("retry.scheduled")


def test_a_changed_policy_is_taken_over_by_the_next_attach(installation: AttachInstallation) -> None:
    installation.declare("orders", "classic")
    installation.policy("team", "^orders$", max_length=10)
    installation.attach("orders")
    installation.policy("team", "^orders$", max_length=1)
    installation.attach("orders")
    installation.publish("orders")
    installation.publish("orders")
    installation.take("retry.scheduled")
    assert installation.depth("orders") == 1

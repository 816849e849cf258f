from __future__ import annotations

import pytest

from tarry.attach.detach import detach
from tarry.attach.listing import AttachmentState
from tests.integration.attach.installation import AttachInstallation

CHANGES = pytest.mark.parametrize(("before", "after"), [("quorum", "classic"), ("classic", "quorum")])


def declare_again(installation: AttachInstallation, kind: str) -> None:
    installation.channel.queue_delete("orders")
    installation.declare("orders", kind)


def assert_a_reject_arrives(installation: AttachInstallation) -> None:
    installation.publish("orders")
    installation.reject("orders")
    installation.take("retry.scheduled")


@CHANGES
def test_attach_stays_in_effect_when_the_queue_changes_its_type(
    installation: AttachInstallation, before: str, after: str
) -> None:
    installation.declare("orders", before)
    installation.attach("orders")
    declare_again(installation, after)
    assert_a_reject_arrives(installation)
    installation.policy("unrelated", "^nothing$", max_length=1)  # the broker assigns all policies again at any change
    assert_a_reject_arrives(installation)
    declare_again(installation, before)
    assert_a_reject_arrives(installation)


@CHANGES
def test_attach_keeps_the_users_keys_when_the_queue_changes_its_type(
    installation: AttachInstallation, before: str, after: str
) -> None:
    installation.declare("orders", before)
    installation.policy("team", "^orders$", 7, message_ttl=1)
    installation.attach("orders")
    declare_again(installation, after)
    installation.publish("orders")
    properties, _, _ = installation.take("retry.scheduled")
    assert properties.headers is not None
    assert properties.headers["x-first-death-reason"] == "expired"


@CHANGES
def test_list_tells_a_change_of_type_and_attach_mends_it(
    installation: AttachInstallation, before: str, after: str
) -> None:
    installation.declare("orders", before)
    installation.attach("orders")
    declare_again(installation, after)
    assert installation.attachments()["orders"].state in (AttachmentState.TYPE_CHANGED, AttachmentState.BINDING_GONE)
    installation.attach("orders")
    assert installation.attachments()["orders"].state is AttachmentState.OK
    assert installation.applied_policy("orders") == "tarry.orders"
    declare_again(installation, before)
    assert_a_reject_arrives(installation)


@CHANGES
def test_detach_removes_the_fallback_policy_too(
    installation: AttachInstallation, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
    installation.declare("orders", before)
    nothing = installation.everything()
    installation.attach("orders")
    declare_again(installation, after)
    (plan,) = detach(installation.topology, installation.address, queues=["orders"], force=True)
    assert plan.parts[:2] == ["policy  tarry-fallback.orders", "policy  tarry.orders"]
    assert installation.everything() == nothing
    assert installation.applied_policy("orders") is None


def test_list_tells_a_fallback_policy_that_is_gone(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.attach("orders")
    installation.management.delete_policy("tarry-fallback.orders")
    found = installation.attachments()["orders"]
    assert found.state is AttachmentState.DRIFTED
    assert "tarry-fallback.orders" in found.detail
    installation.attach("orders")
    assert installation.attachments()["orders"].state is AttachmentState.OK


def test_list_tells_an_argument_that_beats_the_policy(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.attach("orders")
    installation.channel.queue_delete("orders")
    installation.declare("orders", x_dead_letter_exchange="elsewhere")
    found = installation.attachments()["orders"]
    assert found.state is AttachmentState.OVERRIDDEN
    assert "x-dead-letter-exchange='elsewhere'" in found.detail

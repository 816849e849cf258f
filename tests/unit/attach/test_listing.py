from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.attach.listing import AttachmentState, attachments
from tarry.attach.merge import MergeOptions
from tarry.attach.own_policy import PolicyRecord, unconfirmed
from tarry.attach.plan import plan_queue
from tarry.attach.snapshot import BrokerSnapshot, UserQueue
from tarry.core.names import Destination
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.objects import Binding, Blueprint
from tests.unit.attach.snapshots import FAILURES, NAMES, a_policy, a_queue, a_snapshot, an_exchange

TEAM = a_policy("team", max_length=5)


def parts_of(destination: Destination) -> Blueprint:
    return destination_blueprint(NAMES, destination)


def our_policies(*policies: BrokerPolicy) -> tuple[BrokerPolicy, BrokerPolicy]:
    """The policy itself, and the fallback."""
    found = plan_queue(a_snapshot(a_queue(), policies=policies), "orders", MergeOptions(), FAILURES)
    assert found.policy is not None
    assert found.fallback is not None
    return found.policy, found.fallback


def our_policy(*policies: BrokerPolicy) -> BrokerPolicy:
    return our_policies(*policies)[0]


def snapshot(
    *policies: BrokerPolicy,
    applied: str | None = "tarry.orders",
    bindings: tuple[Binding, ...] | None = None,
    queues: tuple[UserQueue, ...] | None = None,
) -> BrokerSnapshot:
    parts = parts_of(Destination("queue", "orders"))
    return a_snapshot(
        *((a_queue(policy=applied),) if queues is None else queues),
        policies=policies,
        bindings=parts.bindings if bindings is None else bindings,
        with_queues=tuple(queue.name for queue in parts.queues),
    )


def one_state(found: BrokerSnapshot) -> tuple[AttachmentState, str]:
    (only,) = attachments(found)
    return only.state, only.detail


def test_nothing_is_attached_on_a_fresh_broker() -> None:
    assert attachments(a_snapshot(a_queue())) == []


def test_what_stands_as_it_was_attached_is_ok() -> None:
    (only,) = attachments(snapshot(TEAM, *our_policies(TEAM)))
    assert (only.state, only.base, only.detail) == (AttachmentState.OK, "team", "")


def test_a_changed_policy_of_the_user_is_drift() -> None:
    state, detail = one_state(snapshot(a_policy("team", max_length=6), our_policy(TEAM)))
    assert state is AttachmentState.DRIFTED
    assert detail == (
        "your policy 'team' has changed since it was attached; to take that over, run: tarry attach orders"
    )


def test_a_policy_of_the_user_that_came_or_went_is_drift() -> None:
    assert "'team' would apply to it now" in one_state(snapshot(TEAM, our_policy()))[1]
    assert "'team' no longer applies" in one_state(snapshot(our_policy(TEAM)))[1]
    assert "'other' has replaced 'team'" in one_state(snapshot(a_policy("other", expires=9), our_policy(TEAM)))[1]


def test_a_policy_of_ours_that_was_edited_is_drift() -> None:
    ours = our_policy()
    edited = BrokerPolicy(ours.name, ours.pattern, ours.apply_to, ours.priority, {**ours.definition, "expires": 5})
    state, detail = one_state(snapshot(edited))
    assert state is AttachmentState.DRIFTED
    assert "tarry.orders was edited" in detail


def test_a_stronger_policy_of_the_user_overrides_ours() -> None:
    state, detail = one_state(snapshot(a_policy("team", priority=99), our_policy(), applied="team"))
    assert state is AttachmentState.OVERRIDDEN
    assert "policy 'team' instead of tarry's" in detail


def test_a_policy_of_ours_that_is_not_applied_at_all_is_told() -> None:
    assert "no policy at all" in one_state(snapshot(our_policy(), applied=None))[1]


def test_list_tells_a_policy_write_that_was_not_confirmed() -> None:
    ours, fallback = our_policies()
    state, detail = one_state(snapshot(unconfirmed(ours), fallback))
    assert state is AttachmentState.UNCONFIRMED
    assert detail.endswith("run: tarry attach orders")


def test_list_tells_that_only_the_fallback_applies() -> None:
    queue = a_queue(kind="classic", policy="tarry-fallback.orders")
    state, detail = one_state(snapshot(*our_policies(), queues=(queue,)))
    assert state is AttachmentState.TYPE_CHANGED
    assert "it is a classic queue now" in detail
    assert not state.may_lose_rejects


def test_list_tells_an_argument_that_beats_our_policy() -> None:
    queue = a_queue(policy="tarry.orders", arguments={"x-dead-letter-exchange": "elsewhere"})
    assert one_state(snapshot(*our_policies(), queues=(queue,)))[0] is AttachmentState.OVERRIDDEN


def test_list_tells_a_fallback_that_is_missing_or_edited() -> None:
    ours, fallback = our_policies()
    edited = replace(fallback, definition={**fallback.definition, "expires": 5})
    for policies in ((ours,), (ours, edited)):
        state, detail = one_state(snapshot(*policies))
        assert state is AttachmentState.DRIFTED
        assert "tarry-fallback.orders" in detail


def test_list_knows_an_attachment_by_its_fallback_alone() -> None:
    assert one_state(snapshot(our_policies()[1], applied=None, bindings=()))[0] is AttachmentState.POLICY_GONE


def test_a_deleted_policy_is_told() -> None:
    state, detail = one_state(snapshot(applied=None))
    assert state is AttachmentState.POLICY_GONE
    assert detail == "policy tarry.orders does not exist; run: tarry attach orders"


def test_a_removed_binding_is_told() -> None:
    relay = Binding("retry.relay", "~to:orders", "retry.relay.orders")
    state, detail = one_state(snapshot(our_policy(), bindings=(relay,)))
    assert state is AttachmentState.BINDING_GONE
    assert "retry.deliver ─~to:orders▶ queue orders" in detail


def test_a_deleted_queue_is_told_with_both_ways_out() -> None:
    state, detail = one_state(snapshot(our_policy(), queues=()))
    assert state is AttachmentState.GONE
    assert "tarry detach orders" in detail


def test_a_way_home_bound_on_first_sight_is_no_attachment() -> None:
    assert attachments(snapshot(applied=None, bindings=(Binding("retry.deliver", "~to:orders", "orders"),))) == []


def test_an_exchange_is_listed_by_its_relay() -> None:
    parts = parts_of(Destination("exchange", "app.events"))
    found = a_snapshot(
        exchanges=(an_exchange("app.events"),),
        bindings=parts.bindings,
        with_queues=tuple(queue.name for queue in parts.queues),
    )
    (only,) = attachments(found)
    assert (only.destination, only.state) == (Destination("exchange", "app.events"), AttachmentState.OK)


def test_an_exchange_too_long_for_a_relay_is_listed_by_its_return_binding() -> None:
    name = "x" * 245
    found = a_snapshot(exchanges=(an_exchange(name),), bindings=parts_of(Destination("exchange", name)).bindings)
    assert [only.destination.name for only in attachments(found)] == [name]


def test_a_policy_of_another_installation_is_not_ours_to_list() -> None:
    ours = our_policy()
    theirs = BrokerPolicy(ours.name, ours.pattern, "queues", 1, {"dead-letter-exchange": "other.intake"})
    assert attachments(a_snapshot(a_queue(policy=ours.name), policies=(theirs,))) == []


def test_attachments_read_each_policy_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each other attachment: each audit pass of each router lists them all."""
    number, read = 200, list[str]()
    queues = tuple(a_queue(f"queue{place}", policy=f"tarry.queue{place}") for place in range(number))
    bare = a_snapshot(*queues)
    plans = [plan_queue(bare, queue.name, MergeOptions(), FAILURES) for queue in queues]
    policies = [policy for found in plans for policy in (found.policy, found.fallback) if policy is not None]
    parts = [parts_of(Destination("queue", queue.name)) for queue in queues]
    bindings = tuple(binding for part in parts for binding in part.bindings)
    names = tuple(queue.name for part in parts for queue in part.queues)
    attached = a_snapshot(*queues, policies=tuple(policies), bindings=bindings, with_queues=names)
    original = PolicyRecord.read

    def counting(pattern: str) -> PolicyRecord | None:
        read.append(pattern)
        return original(pattern)

    monkeypatch.setattr(PolicyRecord, "read", counting)
    found = attachments(attached)
    assert {one.state for one in found} == {AttachmentState.OK}
    assert len(found) == number
    assert len(read) < 20 * len(policies)

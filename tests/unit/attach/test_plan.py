from __future__ import annotations

import pytest

from tarry.attach.findings import Level
from tarry.attach.merge import MergeOptions
from tarry.attach.own_policy import PolicyRecord, pattern_for, unconfirmed
from tarry.attach.plan import AttachPlan, plan_queue
from tarry.attach.snapshot import BrokerSnapshot, UserQueue, require_topology
from tarry.core.names import Destination
from tarry.errors import TopologyMismatchError
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.live import Live
from tarry.topology.objects import Binding
from tests.unit.attach.snapshots import FAILURES, NAMES, a_policy, a_queue, a_snapshot


def plan(snapshot: BrokerSnapshot, queue: str = "orders", options: MergeOptions | None = None) -> AttachPlan:
    return plan_queue(snapshot, queue, options or MergeOptions(), FAILURES)


def said(found: AttachPlan, level: Level) -> str:
    return "\n".join(found.texts(level))


def policy_of(found: AttachPlan) -> BrokerPolicy:
    assert found.policy is not None
    return found.policy


def attached(survey_of: UserQueue, *policies: BrokerPolicy, options: MergeOptions | None = None) -> BrokerSnapshot:
    """The snapshot that would be read after the plan was carried out."""
    before = a_snapshot(survey_of, policies=policies)
    done = plan(before, survey_of.name, options)
    ours, fallback = policy_of(done), done.fallback
    assert fallback is not None
    parts = destination_blueprint(NAMES, Destination("queue", survey_of.name))
    queue = a_queue(survey_of.name, survey_of.type, ours.name, arguments=survey_of.arguments)
    relays = tuple(part.name for part in parts.queues)
    return a_snapshot(queue, policies=(*policies, ours, fallback), bindings=parts.bindings, with_queues=relays)


def test_all_parts_are_planned() -> None:
    found = plan(a_snapshot(a_queue()))
    assert policy_of(found).name == "tarry.orders"
    assert policy_of(found).apply_to == "quorum_queues"
    assert [queue.name for queue in found.missing.queues] == ["retry.relay.orders", "retry.held.orders"]
    assert found.missing.bindings == (
        Binding("retry.deliver", "~to:orders", "orders"),
        Binding("retry.relay", "~to:orders", "retry.relay.orders"),
    )
    assert not found.refused
    assert not found.nothing_to_do


def test_a_second_attach_has_nothing_to_do() -> None:
    assert plan(attached(a_queue(), a_policy(max_length=5))).nothing_to_do


def test_our_policy_is_stronger_than_any_that_fits() -> None:
    rivals = (a_policy("weak", priority=-3), a_policy("strong", priority=40), a_policy("else", "^mail", 90))
    assert policy_of(plan(a_snapshot(a_queue(), policies=rivals))).priority == 42


def test_the_strongest_fitting_policy_is_the_one_that_is_merged() -> None:
    rivals = (a_policy("weak", priority=1, max_length=1), a_policy("strong", priority=2, expires=2))
    definition = policy_of(plan(a_snapshot(a_queue(policy="strong"), policies=rivals))).definition
    assert "expires" in definition
    assert "max-length" not in definition


def test_a_policy_that_is_void_for_the_queues_type_is_not_merged() -> None:
    void = a_policy("void", priority=9, delivery_limit=3)
    assert policy_of(plan(a_snapshot(a_queue(kind="classic"), policies=(void,)))).definition == {
        "dead-letter-exchange": "retry.intake"
    }


def test_of_two_equals_the_brokers_choice_counts_and_is_warned_of() -> None:
    equals = (a_policy("one", max_length=1), a_policy("two", max_length=2))
    found = plan(a_snapshot(a_queue(policy="two"), policies=equals))
    assert policy_of(found).definition["max-length"] == 2
    assert "'two' and 'one' match with the same priority" in said(found, Level.WARNING)


def test_of_two_equals_a_second_attach_keeps_the_first_choice() -> None:
    snapshot = attached(a_queue(policy="two"), a_policy("one", max_length=1), a_policy("two", max_length=2))
    assert plan(snapshot).nothing_to_do


def test_after_the_users_policy_changed_attach_merges_anew() -> None:
    snapshot = attached(a_queue(), a_policy("team", max_length=5))
    ours = next(policy for policy in snapshot.policies if policy.name == "tarry.orders")
    changed = a_snapshot(snapshot.queues["orders"], policies=(a_policy("team", max_length=6), ours))
    found = plan(changed)
    assert found.policy_changes
    assert policy_of(found).definition["max-length"] == 6


def test_a_flag_that_is_not_repeated_keeps_its_value() -> None:
    snapshot = attached(a_queue(), options=MergeOptions(delivery_limit=7, consumer_timeout_ms=60_000))
    definition = policy_of(plan(snapshot)).definition
    assert (definition["delivery-limit"], definition["consumer-timeout"]) == (7, 60_000)
    assert policy_of(plan(snapshot, options=MergeOptions(delivery_limit=8))).definition["delivery-limit"] == 8


def test_permission_to_replace_dead_letters_lasts_while_the_policy_does() -> None:
    snapshot = attached(a_queue(), a_policy(dead_letter_exchange="x"), options=MergeOptions(replace_dead_letter=True))
    assert plan(snapshot).nothing_to_do
    ours = next(policy for policy in snapshot.policies if policy.name == "tarry.orders")
    changed = a_snapshot(snapshot.queues["orders"], policies=(a_policy(dead_letter_exchange="y"), ours))
    assert plan(changed).refused


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        (a_queue(kind="stream"), "no reject"),
        (a_queue(exclusive=True, auto_delete=True), "exclusive"),
        (a_queue(auto_delete=True), "auto-delete"),
        (a_queue(durable=False), "not durable"),
        (a_queue("retry.relay.orders"), "belongs to tarry"),
        (a_queue("retry.scheduled"), "belongs to tarry"),
        (a_queue("manual-review.pending"), "belongs to tarry"),
        (a_queue("amq.gen-1"), "belongs to tarry or to the broker"),
        (a_queue(arguments={"x-dead-letter-exchange": "foo"}), "x-dead-letter-exchange='foo' overrides any policy"),
        (a_queue("~orders"), "its name begins with '~'"),
        (a_queue(arguments={"x-dead-letter-routing-key": "~to:mail"}), "x-dead-letter-routing-key='~to:mail' begins"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(queue: UserQueue, reason: str) -> None:
    found = plan(a_snapshot(queue), queue.name)
    assert found.refused
    assert found.nothing_to_do
    assert reason in said(found, Level.REFUSAL)


def test_attach_refuses_a_queue_outside_the_destinations() -> None:
    found = plan_queue(a_snapshot(a_queue()), "orders", MergeOptions(), FAILURES, ("mail", "order.*"))
    assert found.nothing_to_do
    assert "outside the topology's `destinations` (mail, order.*)" in said(found, Level.REFUSAL)
    assert not plan_queue(a_snapshot(a_queue()), "orders", MergeOptions(), FAILURES, ("mail", "ord*")).refused


def test_attach_writes_again_what_the_broker_does_not_apply() -> None:
    done = attached(a_queue())
    found = plan(a_snapshot(a_queue(policy=None), policies=done.policies, bindings=tuple(done.live.bindings)))
    assert found.policy_changes
    assert not found.fallback_changes


def test_attach_writes_again_what_was_not_confirmed() -> None:
    done = attached(a_queue())
    ours = tuple(unconfirmed(policy) for policy in done.policies)
    assert plan(a_snapshot(done.queues["orders"], policies=ours)).policy_changes


@pytest.mark.parametrize(("kind", "other"), [("quorum", "classic"), ("classic", "quorum")])
def test_fallback_policy_is_for_the_other_type_with_the_users_keys(kind: str, other: str) -> None:
    team, elsewhere = a_policy(priority=4, message_ttl=5), a_policy("mail", "^mail$", 9)
    found = plan(a_snapshot(a_queue(kind=kind), policies=(team, elsewhere)))
    assert found.fallback is not None
    assert found.fallback.name == "tarry-fallback.orders"
    assert found.fallback.apply_to == f"{other}_queues"
    assert found.fallback.definition == {"message-ttl": 5, "dead-letter-exchange": "retry.intake"}
    assert (policy_of(found).priority, found.fallback.priority) == (6, 5)


def test_fallback_policy_merges_what_applies_to_the_other_type() -> None:
    quorum = BrokerPolicy("q", "^orders$", "quorum_queues", 3, {"max-length": 1})
    classic = BrokerPolicy("c", "^orders$", "classic_queues", 8, {"max-length": 2})
    found = plan(a_snapshot(a_queue(policy="q"), policies=(quorum, classic)))
    assert found.fallback is not None
    assert (policy_of(found).definition["max-length"], found.fallback.definition["max-length"]) == (1, 2)
    assert (policy_of(found).priority, found.fallback.priority) == (10, 9)


def test_fallback_policy_leaves_other_dead_letters_alone_unless_told() -> None:
    classic = BrokerPolicy("c", "^orders$", "classic_queues", 8, {"dead-letter-exchange": "graveyard"})
    found = plan(a_snapshot(a_queue(), policies=(classic,)))
    assert not found.refused
    assert found.fallback is None
    assert "policy 'c' sends its dead letters to 'graveyard'" in said(found, Level.NOTE)
    replaced = plan(a_snapshot(a_queue(), policies=(classic,)), options=MergeOptions(replace_dead_letter=True))
    assert replaced.fallback is not None


def test_a_queue_that_is_not_there_is_refused() -> None:
    assert "no such queue" in said(plan(a_snapshot(), "orders"), Level.REFUSAL)


def test_an_argument_that_leads_to_tarry_already_is_fine() -> None:
    found = plan(a_snapshot(a_queue(arguments={"x-dead-letter-exchange": "retry.intake"})))
    assert not found.refused
    assert "already" in said(found, Level.NOTE)


def test_a_queue_of_another_installation_is_refused() -> None:
    pattern = pattern_for("orders", PolicyRecord(None, None, ()))
    other = BrokerPolicy("tarry.orders", pattern, "queues", 1, {"dead-letter-exchange": "other.intake"})
    found = plan(a_snapshot(a_queue(policy="tarry.orders"), policies=(other,)))
    assert "'other.intake'" in said(found, Level.REFUSAL)


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        (a_queue(kind="classic"), "classic queue dead-letters at most once"),
        (a_queue(arguments={"x-max-length": 5, "x-overflow": "reject-publish"}), "due retries wait in its relay"),
        (a_queue(arguments={"x-max-length-bytes": 5}), "max-length-bytes 5 with drop-head"),
        (a_queue(arguments={"x-message-ttl": 60_000}), "expire after 1m: those that do become dead letters and go to"),
        (a_queue(arguments={"x-expires": 3_600_000}), "deleted after 1h without use"),
        (a_queue(arguments={"x-single-active-consumer": True}), "out of order"),
        (
            a_queue(arguments={"x-dead-letter-exchange": "retry.intake", "x-dead-letter-routing-key": "dead"}),
            "x-dead-letter-routing-key='dead' replaces the key",
        ),
        (a_queue("x" * 241), "241 bytes, more than 240"),
    ],
)
def test_settings_that_lose_messages_are_warned_of(queue: UserQueue, words: str) -> None:
    found = plan(a_snapshot(queue), queue.name)
    assert not found.refused
    assert words in said(found, Level.WARNING)


def test_a_limit_set_by_the_operator_is_seen_too() -> None:
    found = plan(a_snapshot(a_queue(), operator=(a_policy("op", ".*", message_ttl=1_000),)))
    assert "expire after 1s" in said(found, Level.WARNING)


def test_a_name_too_long_for_a_relay_gets_the_rest() -> None:
    name = "x" * 250
    found = plan(a_snapshot(a_queue(name)), name)
    assert found.missing.queues == ()
    assert [binding.source for binding in found.missing.bindings] == ["retry.deliver"]
    assert found.policy_changes


def test_many_destinations_on_an_old_broker_are_warned_of() -> None:
    bound = tuple(Binding("retry.deliver", f"~to:{number}", str(number)) for number in range(500))
    assert "500 destinations" in said(plan(a_snapshot(a_queue(), bindings=bound, version=(3, 10, 8))), Level.WARNING)
    assert "500 destinations" not in said(plan(a_snapshot(a_queue(), bindings=bound)), Level.WARNING)


def test_an_ordinary_quorum_queue_is_warned_of_nothing() -> None:
    assert said(plan(a_snapshot(a_queue())), Level.WARNING) == ""


def test_nothing_is_attached_to_an_intake_that_leads_nowhere() -> None:
    with pytest.raises(TopologyMismatchError, match=r"exchange retry\.intake.*tarry topology apply"):
        require_topology(BrokerSnapshot(NAMES, Live((4, 3, 6)), {}))
    require_topology(a_snapshot())


def test_a_pattern_that_only_the_broker_can_read_counts_by_its_word() -> None:
    strange = a_policy("strange", r"^ord(?i)ERS$", 5, max_length=5)
    assert policy_of(plan(a_snapshot(a_queue(policy="strange"), policies=(strange,)))).definition["max-length"] == 5
    assert "max-length" not in policy_of(plan(a_snapshot(a_queue(), policies=(strange,)))).definition
    assert plan(attached(a_queue(policy="strange"), strange)).nothing_to_do

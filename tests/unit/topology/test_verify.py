"""Each check on its own, over a snapshot: what makes it speak, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.findings import Finding
from tarry.topology.live import Live
from tarry.topology.objects import Arguments, Binding, Queue
from tarry.topology.verify import findings
from tests.unit.topology import examples

EXPECTED = examples.expected()
STANDING = examples.live(EXPECTED.blueprint)
OLD = (3, 10, 8)


def found(live: Live) -> list[Finding]:
    return findings(EXPECTED, live)


def lines(live: Live) -> list[str]:
    return [str(finding) for finding in found(live)]


def limits(pattern: str, **definition: object) -> tuple[BrokerPolicy, ...]:
    return (
        BrokerPolicy("limits", pattern, "queues", 0, {key.replace("_", "-"): of for key, of in definition.items()}),
    )


def test_a_broker_that_matches_has_no_findings() -> None:
    assert found(STANDING) == []


def test_a_deleted_queue_is_named_with_the_command_that_brings_it_back() -> None:
    assert lines(examples.without_queue(STANDING, "retry.audit")) == [
        "queue retry.audit: is missing. Fix: tarry topology apply",
        "binding retry.home ─(all)▶ queue retry.audit: is missing. Fix: tarry topology apply",
        "binding retry.spool ─(all)▶ queue retry.audit: is missing. Fix: tarry topology apply",
        "binding retry.reports ─(all)▶ queue retry.audit: is missing. Fix: tarry topology apply",
    ]


def test_a_removed_binding_is_named() -> None:
    gone = Binding("retry.ladder.0", "~0:1", "retry.ladder.0.125ms")

    assert lines(examples.without_binding(STANDING, gone)) == [
        "binding retry.ladder.0 ─~0:1▶ queue retry.ladder.0.125ms: is missing. Fix: tarry topology apply"
    ]


def test_a_changed_argument_is_named_with_both_values() -> None:
    (line,) = lines(examples.with_argument(STANDING, "retry.delay.8s", "x-message-ttl", 7_000))

    assert line.startswith("queue retry.delay.8s: x-message-ttl is 7000, should be 8000. Fix: `tarry topology drain")


def test_a_policy_that_shortens_a_ttl_is_named_with_what_it_does() -> None:
    live = replace(STANDING, policies=limits(r"^retry\.delay\.8s$", message_ttl=300))

    assert lines(live) == [
        (
            "queue retry.delay.8s: policy 'limits' (pattern ^retry\\.delay\\.8s$) makes message-ttl 300 "
            "instead of 8000: "
            "messages would leave early, or be lost. Fix: narrow its pattern so that it does not match retry.*, "
            "or: rabbitmqctl clear_policy -p / limits"
        )
    ]


def test_a_policy_that_an_argument_beats_is_no_finding() -> None:
    policies = limits(".*", overflow="drop-head", dead_letter_exchange="x", message_ttl=10**9)
    only_tiers = replace(STANDING, policies=limits(r"^retry\.(delay|ladder)\.", overflow="drop-head"))

    assert found(only_tiers) == []
    touched = {finding.things for finding in found(replace(STANDING, policies=policies))}
    assert not any("queue retry.delay.8s" in things for things in touched)


def test_a_length_limit_by_operator_policy_on_the_tap_is_wrong() -> None:
    (finding,) = found(replace(STANDING, operator_policies=limits("^retry.audit$", max_length=7)))

    assert finding.level == "wrong"
    assert "stalls every tier" in finding.problem
    assert finding.mend.endswith("rabbitmqctl clear_operator_policy -p / limits")


def test_a_policy_on_many_queues_is_one_line_with_all_of_them_in_it() -> None:
    (finding,) = found(replace(STANDING, policies=limits(r"^retry\.", max_length=7)))

    assert finding.subject.endswith("more")
    assert len(finding.things) == len(EXPECTED.blueprint.queues) - 1


def test_a_policy_on_relays_and_held_queues_counts_too() -> None:
    live = examples.with_queue(STANDING, Queue("retry.held.orders", Arguments.of(x_queue_type="quorum")))
    (finding,) = found(replace(live, policies=limits("held", expires=1000)))

    assert finding.things == ("queue retry.held.orders", "queue retry.held~auto")


def test_a_policy_that_gives_the_delay_exchange_an_alternate_is_wrong() -> None:
    by_policy = (BrokerPolicy("ae", r"^retry\.de", "exchanges", 0, {"alternate-exchange": "bin"}),)
    (finding,) = found(replace(STANDING, policies=by_policy))

    assert finding.things == ("exchange retry.delay",)
    assert "no longer be returned" in finding.problem


@pytest.mark.parametrize(
    ("version", "says"),
    [((3, 9, 29), "needs 3.10 or later"), ((3, 13, 1), "#11159"), ((4, 0, 4), "#12933"), ((3, 8), "needs 3.10")],
)
def test_a_broker_too_old_or_known_bad_is_wrong(version: tuple[int, ...], says: str) -> None:
    (finding,) = found(replace(STANDING, version=version))

    assert finding.level == "wrong"
    assert says in finding.problem


@pytest.mark.parametrize("version", [(3, 10, 8), (3, 13, 3), (4, 0, 5), (4, 3, 6)])
def test_the_versions_beside_the_bad_ones_are_fine(version: tuple[int, ...]) -> None:
    assert found(replace(STANDING, version=version)) == []


def test_a_feature_flag_that_is_off_is_wrong() -> None:
    (finding,) = found(replace(STANDING, feature_flags={"stream_queue": "disabled", "quorum_queue": "enabled"}))

    assert finding.mend == "rabbitmqctl enable_feature_flag stream_queue"


@pytest.mark.parametrize(
    ("version", "flags", "count"),
    [(OLD, {}, 1), ((3, 11, 0), {"direct_exchange_routing_v2": "disabled"}, 1), ((3, 11, 0), {}, 0), (OLD, None, 1)],
)
def test_five_hundred_bindings_are_the_limit_of_an_old_broker(
    version: tuple[int, ...], flags: dict[str, str] | None, count: int
) -> None:
    cancels = {Binding("retry.gate.cancelled", f"~id:{number}:1", "retry.cancelled") for number in range(501)}
    live = replace(STANDING, version=version, feature_flags=flags, bindings=STANDING.bindings | cancels)

    assert len(found(live)) == count


def test_what_could_not_be_read_is_a_note_and_no_failure() -> None:
    (finding,) = found(replace(STANDING, feature_flags=None, unread={"feature flags": "no right to"}))

    assert (finding.level, finding.problem) == ("note", "not checked: no right to")


def test_a_retired_tier_is_a_note_with_its_depth() -> None:
    live = examples.with_queue(STANDING, Queue("retry.delay.7s", STANDING.queues["retry.delay.8s"].arguments))
    (finding,) = found(replace(live, depths={"retry.delay.7s": 3}))

    assert finding.level == "note"
    assert str(finding).endswith("holds 3 messages. Fix: tarry topology drain retry.delay.7s")


def test_a_binding_that_nobody_of_ours_made_is_wrong() -> None:
    (finding,) = found(examples.with_binding(STANDING, Binding("retry.arrive", "", "spy")))

    assert "was not created by tarry" in finding.problem


def test_a_second_destination_under_one_key_is_wrong() -> None:
    (finding,) = found(examples.with_binding(STANDING, Binding("retry.deliver", "~to:orders", "payments")))

    assert finding.things == ("binding retry.deliver ─~to:orders▶ queue payments",)


def test_destinations_pauses_and_cancels_are_no_findings() -> None:
    live = STANDING
    for binding in (
        Binding("retry.deliver", "~to:orders", "orders"),
        Binding("retry.deliver", "~via:ev%2Eents", "ev.ents", "exchange"),
        Binding("retry.relay", "~to:orders", "retry.relay.orders"),
        Binding("retry.gate.held", "~to:orders", "retry.held.orders"),
        Binding("retry.gate.cancelled", "~id:1:1", "retry.cancelled"),
    ):
        live = examples.with_binding(live, binding)

    assert found(live) == []


def test_a_relay_whose_destination_has_no_way_home_is_wrong() -> None:
    (finding,) = found(examples.with_binding(STANDING, Binding("retry.relay", "~to:orders", "retry.relay.orders")))

    assert (finding.subject, finding.mend) == ("orders", "tarry attach orders")


def test_a_relay_with_other_arguments_than_attach_gives_is_wrong() -> None:
    live = examples.with_binding(STANDING, Binding("retry.deliver", "~to:orders", "orders"))
    live = examples.with_queue(live, Queue("retry.relay.orders", Arguments.of(x_queue_type="classic")))
    (finding,) = found(live)

    assert "x-message-ttl is not set, should be 0" in finding.problem


def test_a_ladder_of_another_shape_is_wrong() -> None:
    old = examples.expected(ladder={"granularity": "100ms", "radix": 4, "levels": 4})
    both = replace(STANDING, bindings=STANDING.bindings | set(old.blueprint.bindings))

    assert {finding.check for finding in found(both)} == {"binding"}


POLICY = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}


def test_a_lane_that_no_policy_names_is_noted_and_stops_nothing() -> None:
    lane = examples.live(examples.expected(policy=[POLICY | {"lane": "gold"}, POLICY | {"name": "plain"}]).blueprint)
    shown = lines(replace(lane, depths={"retry.delay~gold.8s": 3}))
    assert {finding.level for finding in found(lane)} == {"note"}
    left = "is no longer in any policy and holds 3 messages. Fix: tarry topology apply, then prune"
    assert f"queue retry.delay~gold.8s: {left}" in shown
    assert (
        "binding retry.delay ─~in~gold:2s▶ queue retry.delay~gold.2s: leads into lane gold, which no policy names. "
        "Fix: tarry topology apply" in shown
    )


def test_a_lane_in_use_has_no_findings_and_its_relays_are_checked() -> None:
    expected = examples.expected(policy=[POLICY | {"lane": "gold"}])
    whole = examples.live(expected.blueprint)
    assert findings(expected, whole) == []
    relay = Queue("retry.relay~gold.orders", whole.queues["retry.relay~gold"].arguments)
    attached = examples.with_queue(whole, relay)
    home, own = (
        Binding("retry.deliver", "~to:orders", "orders"),
        Binding("retry.relay~gold", "~to:orders", relay.name),
    )
    attached = examples.with_binding(examples.with_binding(attached, home), own)
    assert findings(expected, attached) == []
    for wrong in (examples.with_argument(attached, relay.name, "x-message-ttl", 7), attached):
        other = examples.with_binding(wrong, Binding("retry.relay~gold", "~to:orders", "somewhere"))
        assert any("somewhere" in str(one) for one in findings(expected, other))
    changed = findings(expected, examples.with_argument(attached, relay.name, "x-message-ttl", 7))
    assert [one.things for one in changed] == [(f"queue {relay.name}",)]

from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.errors import TopologyError, TopologyMismatchError
from tarry.topology.live import Live
from tarry.topology.objects import Binding, Exchange, Queue
from tarry.topology.plan import make_plan
from tarry.topology.retire import (
    SETTLING_SECONDS,
    Settling,
    drainable,
    prunable,
    reasons_to_keep,
    unused_levels,
    unused_of_lanes,
)
from tests.unit.topology import examples

EXPECTED = examples.expected()
STANDING = examples.live(EXPECTED.blueprint)
RETIRED = Queue("retry.delay.7s", STANDING.queues["retry.delay.8s"].arguments)
WITH_RETIRED = examples.with_queue(STANDING, RETIRED)


def test_a_tier_that_no_policy_uses_can_be_drained() -> None:
    assert drainable(EXPECTED, WITH_RETIRED, "retry.delay.7s") == RETIRED


def test_a_tier_that_differs_from_the_files_can_be_drained_to_make_room() -> None:
    live = examples.with_argument(STANDING, "retry.delay.8s", "x-message-ttl", 7_000)

    assert drainable(EXPECTED, live, "retry.delay.8s").ttl_ms == 7_000


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("retry.delay.8s", "in use"),
        ("retry.audit", "not a tier"),
        ("orders", "not a tier"),
        ("retry.delay.9s", "no queue"),
    ],
)
def test_everything_else_is_refused(name: str, why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        drainable(EXPECTED, WITH_RETIRED, name)


@pytest.mark.parametrize("target", [None, "elsewhere", "retry.gone"])
def test_a_tier_that_does_not_lead_home_is_not_drained(target: str | None) -> None:
    live = examples.with_argument(WITH_RETIRED, "retry.delay.7s", "x-dead-letter-exchange", target)

    with pytest.raises(TopologyMismatchError, match="does not lead back"):
        drainable(EXPECTED, live, "retry.delay.7s")


def test_prune_keeps_what_is_bound_or_has_messages() -> None:
    def reason(live: Live) -> str | None:
        return reasons_to_keep(EXPECTED, live)["retry.delay.7s"]

    bound = examples.with_binding(WITH_RETIRED, Binding("retry.delay", "~in:7s", "retry.delay.7s"))
    assert reason(WITH_RETIRED) is None
    assert reason(bound) == "still bound to retry.delay: tarry topology drain retry.delay.7s"
    assert (
        reason(replace(WITH_RETIRED, depths={"retry.delay.7s": 2}))
        == "still holds 2 messages, which leave when they expire"
    )


def test_a_level_goes_only_when_nothing_leads_to_it_any_more() -> None:
    level = Exchange("retry.ladder.9", "direct")
    unused = replace(STANDING, exchanges={**STANDING.exchanges, level.name: level})
    used = examples.with_argument(
        examples.with_queue(unused, RETIRED), RETIRED.name, "x-dead-letter-exchange", level.name
    )

    assert unused_levels(EXPECTED, unused) == ["retry.ladder.9"]
    assert unused_levels(EXPECTED, used) == []


def test_a_queue_is_empty_when_it_was_seen_so_for_long_enough() -> None:
    settling = Settling()

    assert not settling.observe(0, now=0)
    assert not settling.observe(0, now=SETTLING_SECONDS - 1)
    assert settling.observe(0, now=SETTLING_SECONDS)


def test_one_message_seen_starts_the_wait_anew() -> None:
    settling = Settling()
    settling.observe(0, now=0)
    settling.observe(1, now=5)

    assert not settling.observe(0, now=SETTLING_SECONDS)
    assert settling.observe(0, now=2 * SETTLING_SECONDS)


POLICY = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}
LANE = examples.live(examples.expected(policy=[POLICY | {"lane": "critical"}, POLICY | {"name": "other"}]).blueprint)
"""A broker with a lane that the files do not have any more."""


def _closed(live: Live) -> Live:
    """As apply leaves it."""
    plan = make_plan(EXPECTED.names, EXPECTED.blueprint, live)
    assert {binding.key for binding in plan.former} == {f"~in~critical:{word}" for word in ("2s", "8s", "ladder")}
    return replace(live, bindings=live.bindings - set(plan.former))


def test_the_queues_of_a_lane_are_kept_until_all_of_them_are_empty_and_closed() -> None:
    def reasons(live: Live) -> set[str | None]:
        found = reasons_to_keep(EXPECTED, live)
        assert set(found) == {name for name in live.queues if "~critical" in name}
        return set(found.values())

    with_relay = examples.with_queue(
        LANE, Queue("retry.relay~critical.orders", LANE.queues["retry.relay~critical"].arguments)
    )
    assert reasons(with_relay) == {"messages can still enter lane critical: tarry topology apply"}
    for name in ("retry.delay~critical.8s", "retry.ladder~critical.0.125ms", "retry.relay~critical.orders"):
        waiting = replace(_closed(with_relay), depths={name: 2, "retry.delay.8s": 3})
        assert reasons(waiting) == {"its lane critical still holds 2 messages, which leave when they expire"}
    assert reasons(_closed(with_relay)) == {None}


def test_the_exchanges_of_a_lane_go_after_its_queues_and_the_gate_after_the_last_lane() -> None:
    closed = _closed(LANE)
    of_lane = {name for name in LANE.exchanges if "~critical" in name}
    assert unused_of_lanes(EXPECTED, closed) == []
    empty = replace(closed, queues={name: queue for name, queue in closed.queues.items() if "~" not in name})
    assert unused_of_lanes(EXPECTED, empty) == [*sorted(of_lane), "retry.lanes.cancelled"]
    other = examples.expected(policy=[POLICY | {"lane": "other"}, POLICY | {"name": "plain"}])
    assert unused_of_lanes(other, empty) == sorted(of_lane)
    assert unused_levels(EXPECTED, closed) == []
    assert set(prunable(EXPECTED, closed)) == {name for name in closed.queues if "~critical" in name} | {
        *of_lane,
        "retry.lanes.cancelled",
    }


def test_a_queue_of_a_lane_that_is_gone_is_not_drained_alone() -> None:
    with pytest.raises(TopologyError, match="lane critical, which no policy names"):
        drainable(EXPECTED, LANE, "retry.ladder~critical.0.125ms")
    lanes = examples.expected(policy=[POLICY | {"lane": "critical", "schedule": ["2s"]}])
    assert drainable(lanes, LANE, "retry.delay~critical.8s").name == "retry.delay~critical.8s"


def test_nothing_of_a_lane_in_use_is_retired() -> None:
    lanes = examples.expected(policy=[POLICY | {"lane": "critical"}, POLICY | {"name": "other"}])
    relay = Queue("retry.relay~critical.orders", LANE.queues["retry.relay~critical"].arguments)
    live = examples.with_queue(LANE, relay)
    assert make_plan(lanes.names, lanes.blueprint, live).nothing_to_do
    assert prunable(lanes, live) == []

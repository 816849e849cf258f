"""What is missing, what is late, and what cannot be told: the audit against depths, as tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tarry.audit.depths import Depths, QueueDepth
from tarry.audit.verdict import (
    Open,
    Shortage,
    Snapshot,
    can_hold,
    deciding_queues,
    empty_tiers,
    judge,
    short_queues,
    unsettled_queues,
)
from tarry.core.names import AUTOMATIC, Gate, Names

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
GRACE = timedelta(seconds=30)
HOUR, EIGHT = "retry.delay.1h", "retry.delay.8s"


def overdue(*, minutes: float = 2, queue: str = "orders", tier: str = HOUR) -> Open:
    due = NOW - timedelta(minutes=minutes)
    return Open("6f1c", 1, "m1", queue, "", "scheduled", tier, due, rebuildable=True, expected=due)


def depths(**queues: QueueDepth | int) -> Depths:
    """`delay_1h=3`: underscores for dots."""
    found = {
        f"retry.{name.replace('_', '.')}": depth if isinstance(depth, QueueDepth) else QueueDepth(depth, depth)
        for name, depth in queues.items()
    }
    return Depths(Names(), found)


def test_a_tier_with_enough_or_more_messages_is_fine() -> None:
    for held in (3, 4):
        verdict = judge(Snapshot(NOW, {HOUR: 3}), depths(delay_1h=held))
        assert (verdict.lost, verdict.unjudged) == (0, [])


def test_a_tier_with_too_few_messages_is_short_by_the_difference() -> None:
    verdict = judge(Snapshot(NOW, {HOUR: 3, EIGHT: 1}), depths(delay_1h=1, delay_8s=1))
    assert (verdict.missing, verdict.shortages, verdict.lost) == ([], [Shortage(HOUR, 3, 1)], 2)


def test_every_message_of_an_empty_tier_is_named() -> None:
    snapshot = Snapshot(NOW, {HOUR: 1, EIGHT: 1})
    found = depths(delay_8s=1)
    assert empty_tiers(snapshot, found) == [HOUR], "a tier that is not declared is empty"
    verdict = judge(snapshot, found, [overdue()])
    assert [one.retry.message_id for one in verdict.missing] == ["m1"]
    assert verdict.shortages == []


def test_a_tier_is_short_even_if_its_dead_letter_worker_has_some() -> None:
    """What has not come due cannot be with the worker."""
    found = depths(delay_1h=QueueDepth(messages=5, ready=2))
    assert judge(Snapshot(NOW, {HOUR: 4}), found).shortages == [Shortage(HOUR, 4, 2)]
    assert empty_tiers(Snapshot(NOW, {HOUR: 4}), depths(delay_1h=QueueDepth(messages=5))) == [HOUR]


def test_a_queues_own_count_replaces_what_statistics_say_is_ready() -> None:
    old = depths(delay_1h=QueueDepth(messages=9, ready=5, unacked=3))
    assert old.with_ready({HOUR: 0})[HOUR] == QueueDepth(messages=4, ready=0, unacked=3)
    assert old.with_ready({HOUR: 7})[HOUR] == QueueDepth(messages=11, ready=7, unacked=3)


def test_a_queue_is_unsettled_while_only_statistics_say_it_has_enough() -> None:
    snapshot, found = Snapshot(NOW, {HOUR: 3}), depths(delay_1h=QueueDepth(messages=3, ready=1, unacked=2))
    assert unsettled_queues(snapshot, found, {HOUR: 1}) == [HOUR]
    assert unsettled_queues(snapshot, found, {}) == [HOUR], "this user may not ask it"
    assert unsettled_queues(snapshot, found.with_ready({HOUR: 3}), {HOUR: 3}) == []
    assert unsettled_queues(snapshot, found.with_ready({HOUR: 0}), {HOUR: 0}) == [], "it is short in any case"


def test_queues_are_asked_if_they_can_have_what_is_looked_for() -> None:
    found = depths(delay_1h=3, held_orders=1, relay_mails=1, audit=1, scheduled=0)
    claim = Open("6f1c", 1, "m1", "orders", "", "claimed", None, NOW, rebuildable=False)
    assert deciding_queues(Snapshot(NOW, {HOUR: 3, EIGHT: 0}), found) == {HOUR}
    assert deciding_queues(Snapshot(NOW, {}, [overdue()]), found) == {HOUR, "retry.held.orders", "retry.audit"}
    assert deciding_queues(Snapshot(NOW, {}, stale_claims=[claim]), found) == {"retry.audit"}
    assert short_queues(Snapshot(NOW, {HOUR: 3, EIGHT: 1}), found) == {EIGHT}


def test_a_tier_without_a_leader_is_not_judged() -> None:
    snapshot = Snapshot(NOW, {HOUR: 1})
    found = depths(delay_1h=QueueDepth(known=False))
    assert empty_tiers(snapshot, found) == []
    assert judge(snapshot, found).unjudged == [HOUR]


def test_an_overdue_one_that_can_be_nowhere_is_missing() -> None:
    verdict = judge(Snapshot(NOW, {}, [overdue()]), depths(audit=0, relay=0), grace=GRACE)
    assert [one.why for one in verdict.missing] == ["overdue, and nowhere on the broker"]


def test_an_overdue_retry_is_late_if_its_destination_is_paused_or_missing() -> None:
    snapshot = Snapshot(NOW, {}, [overdue()])
    for queue, found in (
        ("retry.held.orders", depths(held_orders=1)),
        ("retry.unroutable", depths(unroutable=1)),
        ("retry.cancelled", depths(cancelled=1)),
        ("retry.relay", depths(relay=QueueDepth(32))),
        ("retry.relay.orders", depths(relay_orders=QueueDepth(40))),
        (HOUR, depths(delay_1h=QueueDepth(messages=5, ready=4))),
        (HOUR, depths(delay_1h=1)),
    ):
        verdict = judge(snapshot, found, grace=GRACE)
        assert [one.where for one in verdict.late] == [(queue,)]
        assert verdict.missing == []


def test_another_destinations_pause_and_relay_do_not_explain_it() -> None:
    for found in (depths(held_mails=7), depths(relay=QueueDepth(31, ready=31)), depths(relay_mails=QueueDepth(99))):
        assert judge(Snapshot(NOW, {}, [overdue()]), found, grace=GRACE).lost == 1


def test_a_gate_explains_only_the_retries_that_it_can_hold() -> None:
    """One message is held by its job type for days; another retry is lost meanwhile."""
    lost, held = overdue(), replace(overdue(), retry_id="9a2b")
    gate = "retry.held~type:pdf"
    found = Depths(Names(), {gate: QueueDepth(1, 1)})
    assert judge(Snapshot(NOW, {}, [lost]), found, grace=GRACE).lost == 1
    assert deciding_queues(Snapshot(NOW, {}, [lost]), found) == set()
    snapshot = Snapshot(NOW, {}, [lost, held], gates={"6f1c": [], "9a2b": [gate]})
    verdict = judge(snapshot, found, grace=GRACE)
    assert [one.retry for one in verdict.missing] == [lost]
    assert [(one.retry, one.where) for one in verdict.late] == [(held, (gate,))]
    assert deciding_queues(snapshot, found) == {gate}


LONG_NAME = "x" * 200


@pytest.mark.parametrize(
    ("gate", "carried", "policy", "can"),
    [
        (Gate("policy", "gold"), ["~policy:gold"], "gold", True),
        (Gate("policy", "gold"), [], "gold", False),
        (AUTOMATIC, [], "gold", False),
        (Gate("policy", "gold"), None, "gold", True),
        (Gate("policy", "gold"), None, "silver", False),
        (Gate("policy", "gold"), None, None, True),
        (Gate("policy", LONG_NAME), None, LONG_NAME, True),
        (Gate("policy", LONG_NAME), None, "gold", False),
        (Gate("job-type", "pdf"), None, "gold", True),
        (AUTOMATIC, None, "gold", True),
    ],
)
def test_a_gate_can_hold_what_carries_its_label_or_may_carry_it(
    gate: Gate, carried: list[str] | None, policy: str | None, *, can: bool
) -> None:
    assert can_hold(gate.label, carried, policy) is can


@pytest.mark.parametrize(
    "moving",
    [
        depths(delay_1h=QueueDepth(messages=5, ready=4)),
        depths(relay=QueueDepth(1)),
        depths(relay_orders=QueueDepth(31)),
    ],
)
def test_a_dead_letter_worker_explains_it_until_the_next_offer_is_due(moving: Depths) -> None:
    """After a restart a worker waits three minutes before it offers a message again, and later ones pass it by."""
    one = overdue()
    later = {HOUR: one.due + timedelta(seconds=1)}
    assert judge(Snapshot(NOW, {}, [one], passed=later), moving, grace=GRACE).lost == 0
    assert judge(Snapshot(NOW, {}, [one], passed=later, passed_long_ago={HOUR: one.due}), moving, grace=GRACE).lost == 0
    assert judge(Snapshot(NOW, {}, [one], passed=later, passed_long_ago=later), moving, grace=GRACE).lost == 1


def test_a_crowded_tier_explains_it_until_later_ones_have_come_through() -> None:
    one, crowded = overdue(), depths(delay_1h=5)
    assert judge(Snapshot(NOW, {}, [one], passed={HOUR: one.due}), crowded, grace=GRACE).lost == 0
    later = {HOUR: one.due + timedelta(seconds=1)}
    assert judge(Snapshot(NOW, {}, [one], passed=later), crowded, grace=GRACE).lost == 1


def test_a_tier_with_only_those_not_yet_due_does_not_explain_it() -> None:
    snapshot = Snapshot(NOW, {HOUR: 4}, [overdue()], not_overdue={HOUR: 4})
    assert judge(snapshot, depths(delay_1h=4), grace=GRACE).lost == 1
    assert judge(snapshot, depths(delay_1h=5), grace=GRACE).lost == 0


def test_a_tap_that_is_behind_explains_it_and_one_that_is_past_it_does_not() -> None:
    one, found = overdue(minutes=2), depths(audit=100)
    snapshot = Snapshot(NOW, {}, [one], tap_seen=one.due)
    assert [late.where for late in judge(snapshot, found, grace=GRACE).late] == [("retry.audit",)]
    assert judge(replace(snapshot, tap_seen=NOW), found, grace=GRACE).lost == 1


def test_a_stale_claim_is_missing_only_when_its_request_can_be_nowhere() -> None:
    claim = Open("6f1c", 1, "m1", "orders", "", "claimed", None, NOW, rebuildable=False)
    snapshot = Snapshot(NOW, {}, stale_claims=[claim])
    assert judge(snapshot, depths(scheduled=1)).lost == 0
    assert judge(snapshot, depths(audit=1)).lost == 0
    verdict = judge(snapshot, depths(scheduled=0))
    assert [(one.retry, one.why) for one in verdict.missing] == [(claim, "claimed, and its request is gone")]


def on_leg(*, minutes: float = 2) -> Open:
    """Its leg has ended, and it is due in a month."""
    ended = NOW - timedelta(minutes=minutes)
    return replace(overdue(tier="retry.ladder.6.229376s"), due=NOW + timedelta(30), expected=ended, on_layover=True)


def test_a_leg_that_ended_is_late_while_the_layover_queue_has_messages() -> None:
    verdict = judge(Snapshot(NOW, {}, overdue=[on_leg()]), depths(layover=1))
    assert [one.where for one in verdict.late] == [("retry.layover",)]


def test_a_leg_that_ended_is_missing_if_no_queue_before_the_next_leg_has_messages() -> None:
    """What is held, or in a relay, has passed the router. The tap is busy, and has read all that was sent by then."""
    snapshot = Snapshot(NOW, {}, overdue=[on_leg()], tap_seen=NOW)
    verdict = judge(snapshot, depths(held_orders=1, relay_orders=40, layover=0, audit=1), grace=GRACE)
    assert [one.retry.message_id for one in verdict.missing] == ["m1"]


def test_a_leg_that_ended_is_late_while_its_record_can_be_in_the_taps_queue() -> None:
    snapshot = Snapshot(NOW, {}, overdue=[on_leg()], tap_seen=NOW - 2 * GRACE)
    assert [one.where for one in judge(snapshot, depths(audit=1), grace=GRACE).late] == [("retry.audit",)]


def test_a_retry_without_legs_is_missing_although_the_layover_queue_has_messages() -> None:
    snapshot = Snapshot(NOW, {}, overdue=[overdue()], tap_seen=NOW)
    assert len(judge(snapshot, depths(layover=7, relay_orders=0), grace=GRACE).missing) == 1


def test_a_leg_that_ended_makes_the_layover_queue_decide() -> None:
    assert "retry.layover" in deciding_queues(Snapshot(NOW, {}, overdue=[on_leg()]), depths(layover=1))


def test_what_has_left_a_check_queue_late_is_late_while_it_can_be_in_the_taps_queue() -> None:
    """It waited there for an hour. The tap has read what was due with it, but not up to now."""
    one = overdue(minutes=60)
    snapshot = Snapshot(NOW, {}, [one], gates={"6f1c": ["retry.check.1h.gold"]}, tap_seen=NOW - 2 * GRACE)
    assert [late.where for late in judge(snapshot, depths(audit=1), grace=GRACE).late] == [("retry.audit",)]
    assert judge(replace(snapshot, tap_seen=NOW), depths(audit=1), grace=GRACE).lost == 1


def test_a_message_of_a_lane_can_be_in_the_relays_of_the_lane_and_in_the_others() -> None:
    """In the others if it was published again."""
    row, full = overdue(tier="retry.delay~gold.8s"), QueueDepth(messages=40, ready=40)
    for relay in ("retry.relay~gold.orders", "retry.relay~gold", "retry.relay.orders", "retry.relay"):
        found = Depths(Names(), {relay: full})
        (late,) = judge(Snapshot(NOW, {}, overdue=[row]), found).late
        assert late.where == (relay,)
        assert relay in deciding_queues(Snapshot(NOW, {}, overdue=[row]), found)
    other = Depths(Names(), {"retry.relay~silver.orders": full, "retry.relay~silver": full})
    assert judge(Snapshot(NOW, {}, overdue=[row]), other).lost == 1
    without = Depths(Names(), {"retry.relay~gold.orders": full})
    assert judge(Snapshot(NOW, {}, overdue=[overdue(tier=EIGHT)]), without).lost == 1

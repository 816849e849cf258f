"""A thousand queues must not blow up the scrape."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

from tarry.audit.maintenance import AuditFindings, Stall
from tarry.audit.status import Counts
from tarry.core.breaker import BreakerState
from tarry.operations.paused_destination import PausedDestination
from tarry.router.plan import RoutePlan
from tarry.service.metrics import OTHER, Labels, Metrics, attempt
from tarry.store.rows import RecordedReturn, Return


def test_the_first_values_keep_their_names_and_the_rest_share_one() -> None:
    label = Labels(2)
    assert [label(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_attempts_end_with_a_sum() -> None:
    assert [attempt(number) for number in (1, 10, 11, 500)] == ["1", "10", "11+", "11+"]


def test_a_thousand_queues_make_two_hundred_series_and_one() -> None:
    metrics = Metrics()
    seen = [Return("id", 1, f"queue-{number}", 1, 0, 5, False, "tier") for number in range(1_000)]
    metrics.count_returns([RecordedReturn(one, comes_due=True, by_person=False) for one in seen])
    samples = [one for metric in metrics.registry.collect() if metric.name == "tarry_due" for one in metric.samples]
    totals = {one.labels["queue"]: one.value for one in samples if one.name == "tarry_due_total"}
    assert len(totals) == 201
    assert totals[OTHER] == 800


def test_a_tier_that_only_the_broker_has_messages_in_is_open_with_zero() -> None:
    """Otherwise the difference that TarryTierDiffers is about would not exist."""
    metrics = Metrics()
    counts = Counts(0, 0, 0, 0, 0, 0, 0, 0, 0)
    metrics.count_pass(AuditFindings(counts, 0, 0, 0.0, (), {"known": 2}, {"known": 2, "unknown": 3, "empty": 0}))
    value = metrics.registry.get_sample_value
    assert (value("tarry_tier_depth", {"tier": "unknown"}), value("tarry_tier_open", {"tier": "unknown"})) == (3, 0)
    assert (value("tarry_tier_depth", {"tier": "known"}), value("tarry_tier_open", {"tier": "known"})) == (2, 2)
    assert value("tarry_tier_open", {"tier": "empty"}) is None


def test_a_batch_of_a_thousand_queues_is_counted_in_two_hundred_and_one_parts() -> None:
    """Counting is most expensive for each label."""
    plans = [cast("RoutePlan", SimpleNamespace(queue=f"queue-{number}")) for number in range(1_000)]
    parts = Metrics()._by_label(plans)
    assert len(parts) == 201
    assert sum(map(len, parts.values())) == 1_000


def values(metrics: Metrics, name: str) -> dict[str, float]:
    """By the first label."""
    found = [one for family in metrics.registry.collect() for one in family.samples if one.name == name]
    return {next(iter(one.labels.values())): one.value for one in found}


def test_stalled_queues_beyond_a_hundred_share_one_label() -> None:
    metrics = Metrics()
    stalled = tuple(Stall(f"retry.relay.q{number}", number, ()) for number in range(1, 10_001))
    metrics.count_pass(AuditFindings(Counts(*[0] * 9), 0, 0, 0.0, stalled, {}, {}))
    found = values(metrics, "tarry_stalled")
    assert len(found) == 101
    assert found["retry.relay.q10000"] == 10_000
    assert sum(found.values()) == sum(range(1, 10_001)), "no message is left out"


def test_throttled_destinations_that_share_a_label_are_summed() -> None:
    metrics = Metrics()
    moment = datetime.now(UTC)
    one = PausedDestination(
        *("", "queue", "", "releasing", moment, moment, None, None, False, timedelta(), 0),
        *(None, None, None, 0, None, 3, 2),
    )
    metrics.show_paused([replace(one, label=f"queue-{number}") for number in range(1_000)])
    for name, each in (("tarry_throttle_rate", 2), ("tarry_throttle_held", 3)):
        found = values(metrics, name)
        assert len(found) == 201
        assert found[OTHER] == 800 * each


def test_breakers_that_share_a_label_show_the_most_open_one() -> None:
    metrics = Metrics()
    states = dict.fromkeys(map(str, range(1_000)), BreakerState.CLOSED) | {"700": BreakerState.OPEN}
    metrics.show_breakers(states)
    found = values(metrics, "tarry_breaker_state")
    assert len(found) == 201
    assert found[OTHER] == 3


def test_a_depth_that_nobody_can_tell_is_absent() -> None:
    metrics = Metrics()
    assert metrics.registry.get_sample_value("retry_queue_depth") is None
    metrics.depth.waiting = 7
    assert metrics.registry.get_sample_value("retry_queue_depth") == 7

"""A thousand queues must not blow up the scrape."""

from __future__ import annotations

from tarry.audit.maintenance import AuditFindings
from tarry.audit.status import Counts
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


def test_a_depth_that_nobody_can_tell_is_absent() -> None:
    metrics = Metrics()
    assert metrics.registry.get_sample_value("retry_queue_depth") is None
    metrics.depth.waiting = 7
    assert metrics.registry.get_sample_value("retry_queue_depth") == 7

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tarry.analytics.rollups import StatisticCounts, StatisticSpan, StatisticsProgress, ceiling, floor, quantile

NOW = datetime(2030, 1, 31, 12, 30, tzinfo=UTC)


def test_counts_are_added_with_their_histograms() -> None:
    one = StatisticCounts(scheduled=1, succeeded=2, success_ms=30, success_bins=(1, 1))
    assert one + StatisticCounts() == one
    assert one + StatisticCounts(succeeded=1, failed=3, success_bins=(0, 1), drift_bins=(5,)) == StatisticCounts(
        scheduled=1, succeeded=3, failed=3, success_ms=30, success_bins=(1, 2), drift_bins=(5,)
    )


def test_rates_and_means_are_unknown_without_outcomes() -> None:
    nothing = StatisticCounts(scheduled=3)
    assert (nothing.success_rate, nothing.mean_success_ms, nothing.mean_drift_ms) == (None, None, None)
    assert StatisticCounts(succeeded=1, failed=3).success_rate == 0.25


@pytest.mark.parametrize(
    ("bins", "share", "expected"),
    [((), 0.5, None), ((0, 0, 0), 0.5, None), ((2, 0, 0), 0.5, 5), ((1, 1, 0), 1.0, 20), ((0, 0, 4), 0.5, 20)],
)
def test_a_quantile_is_interpolated_within_its_bin(bins: tuple[int, ...], share: float, expected: float | None) -> None:
    assert quantile(bins, (10, 20), share) == expected


def test_times_are_rounded_to_whole_hours_and_days_of_utc() -> None:
    elsewhere = NOW.astimezone(tz=None)
    assert floor(elsewhere, StatisticSpan.HOUR) == NOW.replace(minute=0)
    assert ceiling(elsewhere, StatisticSpan.DAY) == datetime(2030, 2, 1, tzinfo=UTC)
    assert ceiling(floor(NOW, StatisticSpan.DAY), StatisticSpan.DAY) == floor(NOW, StatisticSpan.DAY)


def test_progress_says_what_is_not_counted() -> None:
    began = NOW - timedelta(days=2)
    done = StatisticsProgress(NOW, began, None, began.date())
    assert done.describe(NOW + timedelta(minutes=9)) == []
    assert done.describe(NOW + timedelta(minutes=11)) == ["steps since 2030-01-31 12:30 UTC are not counted yet"]
    late = StatisticsProgress(NOW, began, None, began.date(), NOW + timedelta(seconds=90))
    assert (done.lag, late.lag) == (timedelta(0), timedelta(seconds=90))
    (before,) = StatisticsProgress(NOW, began, began.date(), began.date()).describe(NOW)
    assert "2030-01-29 is next; it begins on 2030-01-29" in before

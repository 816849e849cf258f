from __future__ import annotations

import pytest

from benchmarks.suite.samples import BESIDE, Failure, Sample, Samples, Spread, percentile
from tests.unit.benchmarks.results import rates


def test_a_spread_has_the_median_the_least_and_the_most() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(median=3.0, least=1.0, most=10.0, count=3)


def test_a_ratio_is_made_within_each_repeat_and_not_of_medians() -> None:
    found = Samples(
        [
            Sample("rate", "tarry", "per_s", 100, 0),
            Sample("rate", "tarry", "per_s", 300, 1),
            Sample("rate", "other", "per_s", 50, 0),
            Sample("rate", "other", "per_s", 100, 1),
        ]
    )
    assert found.ratio("rate", ("tarry", "per_s"), ("other", "per_s")) == Spread(2.5, 2.0, 3.0, 2)


def test_a_repeat_that_one_side_lacks_gives_no_ratio() -> None:
    found = Samples([Sample("rate", "tarry", "per_s", 100, 0), Sample("rate", "other", "per_s", 50, 1)])
    assert found.ratio("rate", ("tarry", "per_s"), ("other", "per_s")) is None


def test_a_subject_that_only_failed_is_still_a_row() -> None:
    found = Samples([Sample("rate", "tarry", "per_s", 1)], [Failure("rate", "other", "it did not start")])
    assert found.subjects("rate") == ["tarry", "other"]
    assert found.failure("rate", "other") == "it did not start"
    assert found.failure("rate", "tarry") is None


def test_a_run_survives_json() -> None:
    found = Samples([Sample("rate", "tarry", "per_s", 1.5, 2)], [Failure("rate", "other", "broke")])
    again = Samples.from_json(found.as_json())
    assert (again.all, again.failures) == (found.all, found.failures)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.5, 50), (0.99, 99), (1.0, 99)])
def test_a_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    assert percentile(range(100), share) == expected


def test_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_a_load_is_carried_with_some_room_or_where_nobody_knows() -> None:
    found = Samples([Sample("end to end", "tarry", "per_s", 1150), Sample("end to end", "other", "per_s", 1149)])
    assert found.carries("tarry", 1000)
    assert found.carries("tarry, ladder", 1000)
    assert not found.carries("other", 1000)
    assert found.carries("unknown", 1000)


def test_what_was_measured_right_beside_a_contender_counts_before_all_else() -> None:
    apart = [*rates("end to end", "tarry", 300.0), *rates("end to end", "other", 100.0)]
    assert Samples(apart).times("end to end", "other") == Spread.of([3.0])
    beside = Sample("end to end", "other", BESIDE, 250.0, 0)
    assert Samples([*apart, beside]).times("end to end", "other") == Spread.of([2.5])

"""After a full batch the tap rests, so that what comes due at once comes home first; but not for long."""

from __future__ import annotations

import pytest

from tarry.router.taps import BATCH, MOST_REST, REST, Courtesy


def test_after_a_full_batch_it_rests_in_proportion() -> None:
    assert Courtesy().rest(BATCH, 0.05) == pytest.approx(REST * 0.05)


def test_a_batch_that_is_not_full_is_no_reason_to_rest() -> None:
    assert Courtesy().rest(BATCH - 1, 10.0) == 0.0


def test_under_a_lasting_load_it_keeps_pace() -> None:
    courtesy = Courtesy()
    rests = [courtesy.rest(BATCH, 0.1) for _ in range(100)]
    assert sum(rests) == pytest.approx(MOST_REST)
    assert rests[-1] == 0.0


def test_once_it_has_caught_up_it_may_rest_again() -> None:
    courtesy = Courtesy()
    courtesy.rest(BATCH, 100.0)
    assert courtesy.rest(BATCH, 1.0) == 0.0
    courtesy.rest(1, 0.01)
    assert courtesy.rest(BATCH, 0.5) == pytest.approx(REST * 0.5)

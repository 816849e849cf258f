"""When a burst begins the tap stands back, so that what comes due at once comes home first; but only once."""

from __future__ import annotations

from tarry.router.taps import BATCH, REST, Courtesy


def test_after_the_first_full_batch_it_rests() -> None:
    assert Courtesy().rest(BATCH) == REST


def test_a_batch_that_is_not_full_is_no_reason_to_rest() -> None:
    assert Courtesy().rest(BATCH - 1) == 0.0


def test_under_a_lasting_load_it_keeps_pace() -> None:
    courtesy = Courtesy()
    assert sum(courtesy.rest(BATCH) for _ in range(100)) == REST


def test_once_it_has_caught_up_it_may_rest_again() -> None:
    courtesy = Courtesy()
    assert [courtesy.rest(size) for size in (BATCH, BATCH, 1, BATCH)] == [REST, 0.0, 0.0, REST]

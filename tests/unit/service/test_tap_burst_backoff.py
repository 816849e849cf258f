"""When a burst begins the tap pauses once, so that messages that are due at once return first."""

from __future__ import annotations

from tarry.service.tap import BATCH, REST, BurstBackoff


def test_after_the_first_full_batch_it_rests() -> None:
    assert BurstBackoff().rest(BATCH) == REST


def test_a_batch_that_is_not_full_is_no_reason_to_rest() -> None:
    assert BurstBackoff().rest(BATCH - 1) == 0.0


def test_under_a_lasting_load_it_keeps_pace() -> None:
    backoff = BurstBackoff()
    assert sum(backoff.rest(BATCH) for _ in range(100)) == REST


def test_once_it_has_caught_up_it_may_rest_again() -> None:
    backoff = BurstBackoff()
    assert [backoff.rest(size) for size in (BATCH, BATCH, 1, BATCH)] == [REST, 0.0, 0.0, REST]

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.decide import Failure, Review, Rulebook, Schedule, decide, postponed
from tarry.core.ladder import LONGEST_DELAY, Ladder
from tarry.core.policy import ErrorClass, Policy

NOW = 1_700_000_000_000
LADDER = Ladder()
FINAL, RETRYABLE, RATE_LIMITED = ErrorClass.FINAL, ErrorClass.RETRYABLE, ErrorClass.RATE_LIMITED
ALMOST_ONE = 0.999_999


def rules(*policies: dict[str, Any]) -> Rulebook:
    made = tuple(Policy.model_validate({"name": f"p{place}"} | one) for place, one in enumerate(policies))
    return Rulebook(made, LADDER, frozenset().union(*(policy.tiers() for policy in made)))


PLAIN: dict[str, Any] = {"backoff": {"base": "2s", "factor": 2, "cap": "60s"}, "max_retries": 3}
JITTERED: dict[str, Any] = PLAIN | {"jitter": "1s"}


def scheduled(failure: Failure, book: Rulebook, draw: float = 0.0) -> Schedule:
    decision = decide(failure, book, NOW, draw)
    assert isinstance(decision, Schedule), decision
    return decision


def reviewed(failure: Failure, book: Rulebook, draw: float = 0.0) -> Review:
    decision = decide(failure, book, NOW, draw)
    assert isinstance(decision, Review), decision
    return decision


def test_a_first_failure_waits_in_its_policys_tier() -> None:
    decision = scheduled(Failure("orders"), rules(PLAIN))
    assert (decision.itinerary.tier_ms, decision.itinerary.digits) == (2_000, (0, 0, 0, 0, 0, 0, 0))
    assert (decision.due_ms, decision.retry_count, decision.max_retries) == (NOW + 2_000, 1, 3)
    assert (decision.policy.name, decision.error_class) == ("p0", RETRYABLE)


def test_when_all_retries_are_spent_a_person_decides() -> None:
    decision = reviewed(Failure("orders", retry_count=3), rules(PLAIN))
    assert (decision.reason, decision.exhausted) == ("exhausted: 3 of 3 retries spent", True)


def test_jitter_comes_on_top_of_the_tier_and_never_exceeds_its_limit() -> None:
    least, most = (scheduled(Failure("q"), rules(JITTERED), draw) for draw in (0.0, ALMOST_ONE))
    assert (least.due_ms - NOW, most.due_ms - NOW) == (2_000, 3_000)
    assert (most.itinerary.tier_ms, len(most.itinerary.waits(LADDER))) == (2_000, 2)


def test_a_final_error_is_reviewed_at_once_and_not_called_exhausted() -> None:
    decision = reviewed(Failure("q", error_class=FINAL), rules(PLAIN))
    assert (decision.reason, decision.exhausted) == ("the error is final: it is not worth a retry", False)


def test_the_requests_class_beats_the_policys_rules() -> None:
    book = rules(PLAIN | {"errors": [{"type": "ValueError", "class": "final"}]})
    assert reviewed(Failure("q", error_type="ValueError"), book).error_class is FINAL
    assert scheduled(Failure("q", error_type="ValueError", error_class=RETRYABLE), book).error_class is RETRYABLE
    assert reviewed(Failure("q", error_type="KeyError", error_class=FINAL), book).error_class is FINAL


def test_a_rate_limit_with_a_hint_waits_as_told_and_spends_no_attempt() -> None:
    failure = Failure("q", retry_count=3, error_class=RATE_LIMITED, retry_after_ms=30_000)
    decision = scheduled(failure, rules(PLAIN))
    assert (decision.due_ms, decision.retry_count) == (NOW + 30_000, 3)


def test_a_rate_limit_without_a_hint_backs_off_and_spends_one() -> None:
    decision = scheduled(Failure("q", retry_count=1, error_class=RATE_LIMITED), rules(PLAIN))
    assert (decision.due_ms, decision.retry_count) == (NOW + 4_000, 2)
    assert reviewed(Failure("q", retry_count=3, error_class=RATE_LIMITED), rules(PLAIN)).exhausted


@pytest.mark.parametrize(
    "stale", [{"retry_after_ms": 0}, {"next_retry_at_ms": NOW}, {"next_retry_at_ms": NOW - 60_000}]
)
def test_a_hint_that_asks_for_nothing_is_no_hint(stale: dict[str, int]) -> None:
    """Or a rate limit of no time at all would spin without ever spending an attempt."""
    decision = scheduled(Failure("q", error_class=RATE_LIMITED, **stale), rules(PLAIN))  # type: ignore[arg-type]
    assert (decision.due_ms, decision.retry_count) == (NOW + 2_000, 1)


@pytest.mark.parametrize(
    ("hints", "due"),
    [
        ({"retry_after_ms": 500}, 2_000),
        ({"retry_after_ms": 10_000}, 10_000),
        ({"next_retry_at_ms": NOW + 10_000}, 10_000),
        ({"next_retry_at_ms": NOW + 10_000, "retry_after_ms": 5_000}, 10_000),
        ({"next_retry_at_ms": NOW + 5_000, "retry_after_ms": 10_000}, 10_000),
        ({"next_retry_at_ms": NOW - 5_000}, 2_000),
    ],
)
def test_for_other_errors_a_hint_is_a_floor_under_the_backoff(hints: dict[str, int], due: int) -> None:
    decision = scheduled(Failure("q", **hints), rules(PLAIN))  # type: ignore[arg-type]
    assert (decision.due_ms - NOW, decision.retry_count) == (due, 1)


@pytest.mark.parametrize(
    ("asked", "ceiling", "most"), [(None, None, 3), (1, None, 1), (9, None, 3), (9, 10, 9), (99, 10, 10), (0, 10, 0)]
)
def test_a_request_may_ask_for_other_retries_up_to_the_ceiling(asked: int, ceiling: int | None, most: int) -> None:
    book = rules(PLAIN | {"max_retries_ceiling": ceiling})
    failure = Failure("q", max_retries=asked)
    assert reviewed(failure._replace(retry_count=most), book).reason == f"exhausted: {most} of {most} retries spent"
    if most:
        assert scheduled(failure._replace(retry_count=most - 1), book).max_retries == most


def test_rounds_are_bounded_even_where_no_attempt_is_spent() -> None:
    book = rules(PLAIN | {"max_rounds": 5})
    limited = Failure("q", error_class=RATE_LIMITED, retry_after_ms=1_000)
    assert scheduled(limited._replace(round=4), book).retry_count == 0
    assert reviewed(limited._replace(round=5), book).reason == "exhausted: 5 rounds made, the most allowed"


def test_age_is_bounded_by_the_moment_of_return() -> None:
    book = rules(PLAIN | {"max_age": "1m"})
    limited = Failure("q", error_class=RATE_LIMITED, first_failed_ms=NOW - 30_000)
    assert scheduled(limited._replace(retry_after_ms=30_000), book).due_ms == NOW + 30_000
    too_late = reviewed(limited._replace(retry_after_ms=30_001), book)
    assert (too_late.reason, too_late.exhausted) == ("exhausted: due later than 1m after its first failure", True)
    assert reviewed(Failure("q", retry_after_ms=60_001), book).exhausted


def test_a_first_failure_in_the_future_makes_nobody_immortal() -> None:
    book = rules(PLAIN | {"max_age": "1m"})
    assert reviewed(Failure("q", first_failed_ms=NOW * 2, retry_after_ms=61_000), book).exhausted


def test_the_first_policy_that_matches_decides() -> None:
    book = rules(
        {"schedule": ["1s"], "max_retries": 1, "match": {"queue": "a.*", "priority": "high"}},
        {"schedule": ["2s"], "max_retries": 1, "match": {"queue": "a.*"}},
    )
    assert scheduled(Failure("a.b", priority="high"), book).policy.name == "p0"
    assert scheduled(Failure("a.b", priority="low"), book).policy.name == "p1"
    nobody = reviewed(Failure("b"), book)
    assert (nobody.reason, nobody.policy, nobody.exhausted) == ("no policy matches queue 'b'", None, False)


def test_a_wait_longer_than_the_ladder_takes_several_legs_and_keeps_its_due_time() -> None:
    week = 7 * 86_400_000
    for failure in (Failure("q", retry_after_ms=week), Failure("q", next_retry_at_ms=NOW + week)):
        decision = scheduled(failure, rules(PLAIN))
        assert (decision.due_ms, decision.itinerary.leg_ms) == (NOW + week, LADDER.longest_ms)


def test_a_wait_of_more_than_a_year_is_for_a_person() -> None:
    decision = reviewed(Failure("q", retry_after_ms=LONGEST_DELAY + 1), rules(PLAIN))
    assert decision.reason.startswith("A delay of 366d is longer than a year (366d)")
    assert not decision.exhausted


@pytest.mark.parametrize("longest", [LADDER.longest_ms, LONGEST_DELAY])
def test_a_wait_close_to_a_limit_is_accepted_whatever_the_draw(longest: int) -> None:
    book = rules(PLAIN | {"jitter": "30%"})
    for draw in (0.0, 0.5, ALMOST_ONE):
        assert scheduled(Failure("q", retry_after_ms=longest - 1_000), book, draw).due_ms > NOW


failures = st.builds(
    Failure,
    queue=st.just("q"),
    retry_count=st.integers(0, 12),
    round=st.integers(0, 20),
    first_failed_ms=st.none() | st.integers(0, NOW * 2),
    max_retries=st.none() | st.integers(0, 1000),
    error_class=st.none() | st.sampled_from(ErrorClass),
    retry_after_ms=st.none() | st.integers(0, 2**53),
    next_retry_at_ms=st.none() | st.integers(0, 2**53),
    import_due_ms=st.none(),
)


@given(failures, st.floats(0, 1, exclude_max=True), st.sampled_from(["0ms", "1s", "30%"]))
def test_nothing_is_ever_due_before_it_was_asked_for(failure: Failure, draw: float, jitter: str) -> None:
    book = rules(PLAIN | {"jitter": jitter, "max_retries_ceiling": 10})
    decision = decide(failure, book, NOW, draw)
    if isinstance(decision, Review):
        return
    policy = decision.policy
    asked = max(NOW + (failure.retry_after_ms or 0), failure.next_retry_at_ms or 0)
    spends = decision.retry_count == failure.retry_count + 1
    assert decision.due_ms >= asked
    assert decision.due_ms >= NOW + (policy.delay(failure.retry_count) if spends else 0)
    assert spends or failure.error_class is RATE_LIMITED
    assert decision.due_ms == NOW + decision.itinerary.delay_ms
    waits = (decision.itinerary.tier_ms or 0) + sum(
        LADDER.ttl(6 - place, digit) for place, digit in enumerate(decision.itinerary.digits)
    )
    assert waits == decision.itinerary.legs(LADDER)[0]
    assert sum(decision.itinerary.legs(LADDER)) == decision.itinerary.delay_ms


OFFICE = {"window": {"only": "tue-fri 23:00-24:00", "spread": "15m"}}
"""NOW is Tuesday, 2023-11-14 22:13:20 UTC: it opens in 46 minutes and 40 seconds."""
OPENS = NOW + 2_800_000


def test_a_due_time_outside_the_window_moves_to_the_opening_plus_the_spread() -> None:
    least, most = (scheduled(Failure("q"), rules(PLAIN | OFFICE), draw) for draw in (0.0, 1 - 2**-53))
    assert (least.due_ms, least.moved_from_ms) == (OPENS, NOW + 2_000)
    assert OPENS + 14 * 60_000 < most.due_ms <= OPENS + 15 * 60_000


def test_a_due_time_in_the_window_stays_and_uses_its_tier() -> None:
    decision = decide(Failure("q"), rules(PLAIN | OFFICE), OPENS, 0.5)
    assert isinstance(decision, Schedule)
    assert (decision.due_ms, decision.itinerary.tier_ms, decision.moved_from_ms) == (OPENS + 2_000, 2_000, None)


def test_a_window_moves_what_a_request_asks_for_too_and_spends_no_attempt_for_it() -> None:
    asked = Failure("q", error_class=RATE_LIMITED, retry_after_ms=7_200_000)
    decision = scheduled(asked, rules(PLAIN | OFFICE))
    assert (decision.due_ms, decision.retry_count) == (OPENS + 86_400_000, 0)


def test_a_message_that_would_be_too_old_at_the_opening_goes_to_review() -> None:
    decision = reviewed(Failure("q"), rules(PLAIN | OFFICE | {"max_age": "30m"}))
    assert (decision.reason, decision.exhausted) == ("exhausted: due later than 30m after its first failure", True)


def test_an_opening_beyond_the_ladder_takes_several_legs_and_none_at_all_means_review() -> None:
    weekly = {"window": {"only": "mon 08:00-09:00"}}
    decision = scheduled(Failure("q"), rules(PLAIN | weekly))
    assert (decision.moved_from_ms, decision.itinerary.leg_ms) == (NOW + 2_000, LADDER.longest_ms)
    assert decision.due_ms - NOW == 5 * 86_400_000 + 9 * 3_600_000 + 2_800_000
    year = Failure("q", retry_after_ms=LONGEST_DELAY - 60_000)
    assert "longer than a year" in reviewed(year, rules(PLAIN | weekly)).reason
    never = {"window": [{"only": "mon"}, {"only": "tue"}]}
    assert "do not open within 15 days" in reviewed(Failure("q"), rules(PLAIN | never)).reason


IMPORTED = Failure("orders", retry_count=2, error_type="ValidationError", import_due_ms=NOW + 90_000)


def test_an_imported_wait_keeps_its_due_time_and_its_count() -> None:
    errors = [{"type": "*", "class": "final"}]
    decision = scheduled(IMPORTED, rules(JITTERED | {"errors": errors}), ALMOST_ONE)
    assert (decision.due_ms, decision.retry_count, decision.error_class) == (NOW + 90_000, 2, RETRYABLE)


def test_an_imported_wait_for_the_last_retry_is_not_exhausted() -> None:
    assert scheduled(IMPORTED._replace(retry_count=9), rules(PLAIN)).retry_count == 9


@pytest.mark.parametrize("ago_ms", [0, 1, 86_400_000])
def test_an_imported_wait_that_is_over_returns_at_once(ago_ms: int) -> None:
    decision = scheduled(IMPORTED._replace(import_due_ms=NOW - ago_ms), rules(JITTERED), ALMOST_ONE)
    assert (decision.due_ms, decision.itinerary.delay_ms) == (NOW, 0)


@given(st.integers(1, LONGEST_DELAY - 125), st.floats(0, ALMOST_ONE))
def test_an_imported_wait_is_never_early_and_less_than_a_granule_late(ahead_ms: int, draw: float) -> None:
    due_ms = scheduled(IMPORTED._replace(import_due_ms=NOW + ahead_ms), rules(JITTERED), draw).due_ms
    assert 0 <= due_ms - NOW - ahead_ms < LADDER.granularity_ms


def test_an_imported_wait_of_more_than_a_year_is_reviewed() -> None:
    assert (
        "longer than a year" in reviewed(IMPORTED._replace(import_due_ms=NOW + 2 * LONGEST_DELAY), rules(PLAIN)).reason
    )


LANED = [JITTERED | {"lane": "gold"}, PLAIN | {"match": {"queue": "x"}}]


def laned() -> Rulebook:
    made = rules(*LANED)
    return replace(made, tiers=frozenset({2_000}), lane_tiers=frozenset({("gold", 2_000), ("silver", 30_000)}))


@pytest.mark.parametrize(
    ("failure", "draw", "tier", "delay"),
    [
        (Failure("q"), 0.0, 2_000, 2_000),
        (Failure("q"), ALMOST_ONE, 2_000, 3_000),
        (Failure("q", error_class=RATE_LIMITED, retry_after_ms=30_000), 0.0, None, 30_000),
        (Failure("q", import_due_ms=NOW + 2_000), 0.0, 2_000, 2_000),
    ],
)
def test_every_delay_of_a_policy_with_a_lane_uses_the_tiers_of_the_lane(
    failure: Failure, draw: float, tier: int | None, delay: int
) -> None:
    """A tier of 30 s is in another lane."""
    way = scheduled(failure, laned(), draw).itinerary
    assert (way.lane, way.tier_ms, way.delay_ms) == ("gold", tier, delay)
    assert way.keys[0] == ("~in~gold:ladder" if tier is None else "~in~gold:2s")


def test_a_postponed_retry_stays_in_its_lane() -> None:
    decision = postponed(scheduled(Failure("q"), laned()), NOW + 10_000, laned(), NOW)
    assert (decision.itinerary.lane, decision.due_ms) == ("gold", NOW + 10_000)


def test_a_delay_in_several_legs_has_no_lane() -> None:
    longest = LADDER.longest_ms
    fits, longer = (
        scheduled(Failure("q", error_class=RATE_LIMITED, retry_after_ms=ms), laned()).itinerary
        for ms in (longest, longest + 1)
    )
    assert (fits.lane, fits.leg_ms) == ("gold", 0)
    assert (longer.lane, longer.leg_ms, longer.tier_ms) == (None, longest, None)
    assert longer.keys[0] == "~in:ladder"

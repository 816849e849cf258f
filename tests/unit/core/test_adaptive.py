"""Which errors are given up: the evidence, the share that is still tried, and what does not count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.adaptive import (
    DAY_MS,
    HOUR_MS,
    Adaptive,
    AdaptiveFinding,
    ErrorKey,
    ErrorOutcomes,
    ErrorsGivenUp,
    Evidence,
    draw_of,
    judge,
)
from tarry.core.decide import Failure, Review, Rulebook, Schedule, by_history, decide
from tarry.core.fingerprint import fingerprint
from tarry.core.ladder import Ladder
from tarry.core.policy import ErrorClass, Policy

NOW = 1_700_000_000_000 // HOUR_MS * HOUR_MS + HOUR_MS // 2
AT_ONCE = Adaptive.model_validate({"lasting": "0s"})
DEFAULT = Adaptive()


def hour(ago: int, failed: int, succeeded: int = 0, unknown: int = 0) -> ErrorOutcomes:
    starts = NOW // HOUR_MS * HOUR_MS - ago * HOUR_MS
    return ErrorOutcomes(starts, starts + HOUR_MS, failed + succeeded + unknown, succeeded, failed)


@pytest.mark.parametrize(
    ("rule", "outcomes", "finding"),
    [
        (AT_ONCE, [], AdaptiveFinding.TOO_FEW),
        (AT_ONCE, [hour(0, 199)], AdaptiveFinding.TOO_FEW),
        (AT_ONCE, [hour(0, 200)], AdaptiveFinding.GIVEN_UP),
        (AT_ONCE, [hour(0, 199, 1)], AdaptiveFinding.SUCCEEDS),
        (AT_ONCE, [hour(0, 100), hour(30, 100)], AdaptiveFinding.GIVEN_UP),
        (AT_ONCE, [hour(0, 990, 10)], AdaptiveFinding.SUCCEEDS),
        (AT_ONCE, [hour(0, 9_950, 50)], AdaptiveFinding.GIVEN_UP),
        (DEFAULT, [hour(0, 10_000)], AdaptiveFinding.TOO_SHORT),
        (DEFAULT, [hour(0, 10_000), hour(23, 1)], AdaptiveFinding.TOO_SHORT),
        (DEFAULT, [hour(0, 10_000), hour(25, 1)], AdaptiveFinding.TOO_SHORT),
        (DEFAULT, [hour(0, 10_000), hour(25, 99)], AdaptiveFinding.TOO_SHORT),
        (DEFAULT, [hour(0, 10_000), hour(25, 100)], AdaptiveFinding.GIVEN_UP),
        (DEFAULT, [hour(0, 10_000), hour(25, 199, 20)], AdaptiveFinding.SUCCEEDS),
        (DEFAULT, [hour(40, 10_000)], AdaptiveFinding.TOO_SHORT),
        (DEFAULT, [hour(0, 99), hour(40, 10_000)], AdaptiveFinding.TOO_SHORT),
        (DEFAULT, [hour(0, 100), hour(40, 10_000)], AdaptiveFinding.GIVEN_UP),
        (DEFAULT, [hour(0, 200), hour(12, 0, 50), hour(25, 200)], AdaptiveFinding.SUCCEEDS),
        (DEFAULT, [hour(0, 9_000), hour(1, 9_000), hour(12, 0, 20), hour(25, 500)], AdaptiveFinding.SUCCEEDS),
        (DEFAULT, [hour(ago, 9_950, 50) for ago in range(26)], AdaptiveFinding.GIVEN_UP),
        (DEFAULT, [hour(0, 200), hour(25, 200), hour(100, 0, 500)], AdaptiveFinding.GIVEN_UP),
    ],
    ids=[
        "nothing",
        "one too few",
        "enough",
        "one success",
        "over hours",
        "at the limit",
        "below the limit",
        "an outage of an hour",
        "of almost a day",
        "after one failure",
        "after too few failures",
        "for longer",
        "some succeeded before",
        "an outage of two days ago",
        "an outage of two days ago, and a few failures",
        "an outage of two days ago, and more of the same",
        "successes meanwhile",
        "few successes, and then an outage",
        "below the limit for a day",
        "successes before",
    ],
)
def test_judge(rule: Adaptive, outcomes: list[ErrorOutcomes], finding: AdaptiveFinding) -> None:
    assert judge(rule, outcomes).finding is finding


def test_judge_resumes_with_the_first_successes_however_much_has_failed() -> None:
    failed = [hour(5, 100_000), hour(30, 100_000)]
    assert judge(DEFAULT, failed).finding is AdaptiveFinding.GIVEN_UP
    assert judge(DEFAULT, [hour(0, 210, 3), *failed]).finding is AdaptiveFinding.SUCCEEDS


@given(
    lasts=st.integers(1, 23),
    began=st.integers(0, 160),
    failed=st.integers(1, 100_000),
    others=st.dictionaries(st.integers(0, 167), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=10),
)
def test_judge_gives_up_nothing_in_an_outage_that_is_shorter_than_lasting(
    lasts: int, began: int, failed: int, others: dict[int, tuple[int, int]]
) -> None:
    """However much fails in it, whenever it was, with fewer than half of `after` failures in the rest of the time."""
    found = {ago: hour(ago, *counts) for ago, counts in others.items()}
    found |= {ago: hour(ago, failed) for ago in range(began, began + lasts)}
    latest_first = [found[ago] for ago in sorted(found)]
    assert judge(DEFAULT, latest_first).finding is not AdaptiveFinding.GIVEN_UP


def test_judge_counts_returns_without_an_outcome_as_successes() -> None:
    """A success that is presumed comes later than a failure: at first, only failures are seen."""
    assert judge(AT_ONCE, [hour(0, 300, 0, 20)]).finding is AdaptiveFinding.SUCCEEDS
    assert judge(AT_ONCE, [hour(0, 300), hour(1, 0, 0, 20)]).finding is AdaptiveFinding.SUCCEEDS
    assert judge(AT_ONCE, [hour(0, 320)]).finding is AdaptiveFinding.GIVEN_UP


def test_judge_says_why_not() -> None:
    few, short = judge(AT_ONCE, [hour(0, 12)]), judge(DEFAULT, [hour(2, 412)])
    assert few.describe(AT_ONCE) == "not given up: 12 of the 200 outcomes are known that it takes"
    assert short.describe(DEFAULT) == (
        "not given up: 0 of 412 retries of this error succeeded, but too few of them are 1d apart: it may be an outage"
    )
    often = judge(AT_ONCE, [hour(0, 190, 20, 2)])
    assert often.describe(AT_ONCE) == (
        "not given up: 20 of 210 retries of this error succeeded, 2 have no outcome yet, so up to 13.37% may succeed, "
        "which is not below 1%"
    )
    hot = judge(DEFAULT, [hour(0, 10_000), hour(12, 0, 20), hour(25, 500)])
    assert hot.describe(DEFAULT) == (
        "not given up: 20 of 10,520 retries of this error succeeded, so up to 6.28% may succeed in ordinary hours, "
        "which is not below 1%"
    )
    assert judge(AT_ONCE, [hour(0, 412)]).describe(AT_ONCE) == (
        "given up: 0 of 412 retries of this error succeeded (below 1%)"
    )


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 50))
def test_the_highest_rate_is_above_the_rate_and_falls_with_failures(succeeded: int, failed: int, unknown: int) -> None:
    evidence = Evidence(succeeded, failed, unknown, 0)
    more = evidence._replace(failed=failed + 1)
    rate = (succeeded + unknown) / max(1, succeeded + failed + unknown)
    assert rate - 1e-9 <= evidence.highest_rate <= 1 + 1e-9
    assert more.highest_rate <= evidence.highest_rate + 1e-9


def policy(**adaptive: Any) -> Policy:
    return Policy.model_validate(
        {"name": "orders", "schedule": ["2s"], "max_retries": 3, "adaptive": {"try": "25%"} | adaptive}
    )


FAILURE = Failure("orders", error_type="ValueError", error_reason="order 4711 is unknown")
KEY = ErrorKey("orders", "orders", fingerprint("ValueError", "order 4712 is unknown") or "")
REASON = "given up: 0 of 412 retries of this error succeeded (below 1%)"
GIVEN_UP = ErrorsGivenUp({KEY: REASON}, NOW + 60_000)


def decided(
    failure: Failure = FAILURE, given_up: ErrorsGivenUp = GIVEN_UP, *, draw: float = 0.9, now: int = NOW
) -> Schedule | Review:
    first = decide(failure, Rulebook((policy(),), Ladder(), frozenset({2_000})), now, 0.5)
    assert isinstance(first, Schedule)
    return by_history(first, failure, given_up, now, draw)


def test_by_history_sends_an_error_that_is_given_up_to_review_with_the_evidence() -> None:
    found = decided()
    assert isinstance(found, Review)
    assert (found.reason, found.given_up, found.exhausted) == (REASON, True, False)


def test_by_history_still_tries_a_share_with_all_its_retries() -> None:
    for count in (0, 1, 2):
        found = decided(FAILURE._replace(retry_count=count), draw=0.2499)
        assert isinstance(found, Schedule)
        assert found.tried == REASON
    assert isinstance(decided(draw=0.25), Review)


@pytest.mark.parametrize(
    ("failure", "given_up"),
    [
        (FAILURE._replace(error_reason="the order is locked"), GIVEN_UP),
        (FAILURE._replace(error_type=None, error_reason=None), GIVEN_UP),
        (FAILURE._replace(queue="others"), GIVEN_UP),
        (FAILURE, GIVEN_UP._replace(until_ms=NOW - 1)),
        (FAILURE, ErrorsGivenUp()),
        (FAILURE._replace(error_class=ErrorClass.RATE_LIMITED, retry_after_ms=5_000), GIVEN_UP),
        (FAILURE._replace(import_due_ms=NOW + 5_000), GIVEN_UP),
    ],
    ids=["another error", "no error", "another queue", "out of date", "nothing known", "a rate limit", "an import"],
)
def test_by_history_leaves_all_else_as_it_is(failure: Failure, given_up: ErrorsGivenUp) -> None:
    found = decided(failure, given_up)
    assert isinstance(found, Schedule)
    assert found.tried is None


def test_draw_of_is_the_same_for_a_message_and_even_over_messages() -> None:
    draws = [draw_of(f"retry-{number}") for number in range(2_000)]
    assert draws == [draw_of(f"retry-{number}") for number in range(2_000)]
    assert all(0 <= one < 1 for one in draws)
    assert 0.04 < sum(one < 0.05 for one in draws) / len(draws) < 0.06


def test_adaptive_has_defaults_that_no_short_outage_meets() -> None:
    assert Adaptive.model_validate({"give_up_below": "1%", "after": 200}) == DEFAULT
    assert (DEFAULT.lasting, DEFAULT.within, DEFAULT.still_tried) == (DAY_MS, 7 * DAY_MS, 0.05)
    assert DEFAULT.describe() == "below 1% of at least 200 retries in 7d, for 1d; 5% are still tried"

"""The rules of circuit breakers, as tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from tarry.core.breaker import (
    Breaker,
    BreakerState,
    Move,
    ReleaseState,
    ReturnCounts,
    StoredBreaker,
    doubles,
    next_move,
    rule_of,
    wait_of_next,
)

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
RULE = Breaker.model_validate({"failed": "50%", "of": 20, "within": "1m", "wait": "30s", "longest_wait": "2m"})
CLOSED, OPEN, HALF_OPEN, CLOSING = BreakerState
QUIET, FREE = ReturnCounts(), ReleaseState()


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def standing(state: BreakerState, wait: float = 30, ago: float = 0, probe_in: float | None = None) -> StoredBreaker:
    probe_at = None if probe_in is None else NOW + seconds(probe_in)
    return StoredBreaker(state, NOW - seconds(ago), seconds(wait), probe_at, NOW - seconds(ago))


@pytest.mark.parametrize(
    ("counts", "opens"),
    [
        (ReturnCounts(20, 10), True),
        (ReturnCounts(20, 9), False),
        (ReturnCounts(19, 19), False),  # too few returns
        (ReturnCounts(0, 20), True),  # they returned before the time that is counted
        (ReturnCounts(1000, 499), False),
        (ReturnCounts(1000, 500), True),
        (ReturnCounts(), False),
    ],
)
def test_breaker_opens_at_the_share_with_enough_returns(counts: ReturnCounts, *, opens: bool) -> None:
    move = next_move(RULE, StoredBreaker(), counts, FREE, NOW)
    assert (move is not None) is opens
    if move is not None:
        why = f"{counts.failed} of {counts.number} returns failed again"
        assert move == Move(OPEN, why, seconds(30), NOW + seconds(30))


@pytest.mark.parametrize(
    ("now", "release", "counts", "state", "wait", "probe_in"),
    [
        # open: until the wait is over, and never against a pause
        (standing(OPEN, probe_in=1), FREE, QUIET, None, None, None),
        (standing(OPEN, probe_in=0), FREE, QUIET, HALF_OPEN, 30, None),
        (standing(OPEN, probe_in=-9), ReleaseState(is_paused=True), QUIET, None, None, None),
        (standing(OPEN, probe_in=1), FREE, ReturnCounts(99, 99), None, None, None),
        # half-open: only the probe decides
        (standing(HALF_OPEN, ago=9999), FREE, QUIET, None, None, None),
        (standing(HALF_OPEN), FREE, ReturnCounts(99, 99), None, None, None),
        (standing(HALF_OPEN), ReleaseState(has_failed=True), QUIET, OPEN, 60, 60),
        (standing(HALF_OPEN, 60), ReleaseState(has_failed=True), QUIET, OPEN, 120, 120),
        (standing(HALF_OPEN, 120), ReleaseState(has_failed=True), QUIET, OPEN, 120, 120),
        (standing(HALF_OPEN, 60), ReleaseState(has_passed=True), QUIET, CLOSING, 60, None),
        (standing(HALF_OPEN, 60), ReleaseState(is_paused=True), QUIET, OPEN, 60, 0),
        (standing(HALF_OPEN, 60), ReleaseState(is_paused=True, has_failed=True), QUIET, OPEN, 120, 120),
        # closing: the share decides, then whether anything waits
        (standing(CLOSING), FREE, QUIET, None, None, None),
        (standing(CLOSING), FREE, ReturnCounts(30, 14), None, None, None),
        (standing(CLOSING), FREE, ReturnCounts(30, 15), OPEN, 60, 60),
        (standing(CLOSING), ReleaseState(is_over=True), ReturnCounts(30, 15), OPEN, 60, 60),
        (standing(CLOSING), ReleaseState(is_over=True), QUIET, CLOSED, 30, None),
        (standing(CLOSING, 60), ReleaseState(is_paused=True), QUIET, OPEN, 60, 0),
        # closed: not against a pause
        (standing(CLOSED), ReleaseState(is_paused=True), ReturnCounts(99, 99), None, None, None),
        (standing(CLOSED), FREE, QUIET, None, None, None),
        # opened again before it was closed for a whole wait, and for the time that it counts
        (standing(CLOSED, 30, ago=59), FREE, ReturnCounts(99, 99), OPEN, 60, 60),
        (standing(CLOSED, 30, ago=60), FREE, ReturnCounts(99, 99), OPEN, 30, 30),
        (standing(CLOSED, 120, ago=119), FREE, ReturnCounts(99, 99), OPEN, 120, 120),
        (standing(CLOSED, 120, ago=120), FREE, ReturnCounts(99, 99), OPEN, 30, 30),
    ],
)
def test_breaker_changes_its_state(
    now: StoredBreaker,
    *,
    release: ReleaseState,
    counts: ReturnCounts,
    state: BreakerState | None,
    wait: float | None,
    probe_in: float | None,
) -> None:
    move = next_move(RULE, now, counts, release, NOW)
    if state is None:
        assert move is None
        return
    assert move is not None
    found = (move.wait, move.probe_at)
    assert move.state is state
    assert found == (None if wait is None else seconds(wait), None if probe_in is None else NOW + seconds(probe_in))
    assert move.reason


@pytest.mark.parametrize("state", BreakerState)
@pytest.mark.parametrize("release", [FREE, ReleaseState(has_failed=True), ReleaseState(has_passed=True, is_over=True)])
def test_breaker_that_a_person_keeps_does_not_move(state: BreakerState, release: ReleaseState) -> None:
    kept = standing(state, probe_in=-1)._replace(is_forced=True)
    assert next_move(RULE, kept, ReturnCounts(99, 99), release, NOW) is None


@pytest.mark.parametrize(
    ("until", "is_paused", "state"), [(1, False, None), (0, False, HALF_OPEN), (-1, True, None), (None, False, None)]
)
def test_breaker_that_was_opened_for_a_time_probes_after_it(
    until: float | None, *, is_paused: bool, state: BreakerState | None
) -> None:
    ends = None if until is None else NOW + seconds(until)
    kept = standing(OPEN)._replace(is_forced=True, forced_until=ends)
    move = next_move(RULE, kept, QUIET, ReleaseState(is_paused), NOW)
    assert (move and move.state) is state


def test_breaker_never_waits_longer_than_the_longest_wait_or_shorter_than_the_first() -> None:
    now, waits = StoredBreaker(), list[float]()
    for _ in range(6):
        opened = next_move(RULE, now, ReturnCounts(99, 99), ReleaseState(has_failed=True), NOW)
        assert opened is not None
        assert opened.wait is not None
        waits.append(opened.wait.total_seconds())
        now = StoredBreaker(HALF_OPEN, NOW, opened.wait)
    assert waits == [30, 60, 120, 120, 120, 120]
    assert wait_of_next(RULE, StoredBreaker(CLOSED, NOW, seconds(1)), NOW) == seconds(30)  # the file has changed since


@pytest.mark.parametrize(
    ("ago", "counts", "yes"),
    [
        (3, QUIET, True),
        (2.9, QUIET, False),
        (3, ReturnCounts(2, 1), False),
        (3, ReturnCounts(9, 4), True),
        (60, ReturnCounts(9, 9), False),
    ],
)
def test_breaker_doubles_the_rate_while_it_goes_well(ago: float, counts: ReturnCounts, *, yes: bool) -> None:
    """A tenth of the wait is three seconds."""
    assert doubles(RULE, standing(CLOSING, ago=ago), counts, NOW) is yes


@pytest.mark.parametrize(("wait", "step"), [("1s", 1), ("30s", 3), ("10m", 10)])
def test_breaker_keeps_each_rate_for_a_tenth_of_the_wait(wait: str, step: float) -> None:
    assert Breaker.model_validate({"wait": wait}).step == seconds(step)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"failed": "0%"}, "`0%`: use a share above 0% and up to 100%, as in 50%"),
        ({"failed": "101%"}, "`101%`: use a share"),
        ({"failed": 0.5}, "`0.5`: use a share"),
        ({"failed": "half"}, "`half`: use a share"),
        ({"failed": "x%"}, "`x%`: use a share"),
        ({"of": 0}, "greater than or equal to 1"),
        ({"within": "2h"}, "less than or equal to 3600000"),
        ({"within": "0s"}, "greater than or equal to 1000"),
        ({"wait": "500ms"}, "greater than or equal to 1000"),
        ({"wait": "20m"}, "longest_wait 15m is below wait 20m"),
        ({"share": "50%"}, "Extra inputs are not permitted"),
    ],
)
def test_breaker_refuses_bad_values(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Breaker.model_validate(given)
    assert problem in str(refused.value)


def test_breaker_has_defaults_and_describes_itself() -> None:
    rule = Breaker()
    assert (rule.failed, rule.of, rule.within, rule.wait, rule.longest_wait) == (0.5, 20, 60_000, 30_000, 900_000)
    assert rule.describe() == (
        "opens if 50% of at least 20 returns within 1m fail again; probes after 30s, at most 15m"
    )
    assert rule.model_dump()["failed"] == "50%"


def test_breaker_of_the_first_policy_that_has_one_counts() -> None:
    other = Breaker(of=3)
    assert rule_of([None, other, RULE]) is other
    assert rule_of([None]) is None

"""A replay against the truth: histories whose every message has a known moment from which attempts succeed."""

from __future__ import annotations

from typing import Any

import pytest

from tarry.analytics.replay import Ended, MessageRow, Replay, ReplayStep, ReplayTally, ReplayTotals, message_history
from tarry.core.decide import Rulebook
from tarry.topology.model import Topology
from tests.support.histories import DAY_MS, Lived, events, live, useless

NOW_MS = 1_900_000_000_000
SINCE_MS = NOW_MS - 7 * DAY_MS

TOO_SHORT = {"schedule": ["5s", "5s", "5s"], "max_retries": 3}
BETTER = {"backoff": {"base": "30s", "factor": 3, "cap": "30m"}, "max_retries": 6}
JITTERED = {"backoff": {"base": "10s", "factor": 2, "cap": "10m"}, "jitter": "30%", "max_retries": 6}


def rules(**policy: Any) -> Rulebook:
    return Topology.model_validate({"policy": [{"name": "orders", **policy}]}).rules


def replayed(lived: Lived, was: Rulebook, changed: Rulebook) -> ReplayTotals:
    run = Replay(was, changed, SINCE_MS, NOW_MS)
    found = [message_history(row, was, lambda _queue, _mark: None) for row in lived.rows]
    messages = [one for one in found if one is not None]
    run.learn(messages)
    run.add(messages)
    return run.total


def numbers(tally: ReplayTally) -> tuple[float, float, float]:
    return tally.attempts, tally.ended[Ended.SUCCEEDED], tally.ended[Ended.EXHAUSTED]


@pytest.mark.parametrize("policy", [TOO_SHORT, BETTER, JITTERED], ids=["short", "better", "jittered"])
def test_the_same_policy_reproduces_the_history_exactly(policy: dict[str, Any]) -> None:
    was = rules(**policy)
    lived = live([*events(300, now_ms=NOW_MS), *useless(50, now_ms=NOW_MS)], was)

    total = replayed(lived, was, was)

    truth = (float(lived.attempts), float(lived.succeeded), float(lived.exhausted))
    assert numbers(total.history) == truth
    for tally in total.current:
        assert numbers(tally) == pytest.approx(truth)
    assert total.current[0].mean_ms == pytest.approx(sum(lived.took_ms) / len(lived.took_ms), rel=0.02)


@pytest.mark.parametrize(("was", "then"), [(TOO_SHORT, BETTER), (BETTER, TOO_SHORT), (JITTERED, BETTER)])
def test_the_truth_is_within_the_bounds_and_near_the_estimate(was: dict[str, Any], then: dict[str, Any]) -> None:
    before, after = rules(**was), rules(**then)
    happened = [*events(600, now_ms=NOW_MS), *useless(60, now_ms=NOW_MS)]
    truth = live(happened, after)

    estimate, *bounds = replayed(live(happened, before), before, after).changed

    exact = (truth.attempts, truth.succeeded, truth.exhausted)
    for place, value in enumerate(exact):
        low, high = sorted(numbers(one)[place] for one in bounds)
        assert low - 1e-6 <= value <= high + 1e-6
    assert numbers(estimate)[1] == pytest.approx(truth.succeeded, rel=0.25)


def test_a_bad_policy_and_a_better_one_are_told_apart() -> None:
    bad, better = rules(**TOO_SHORT), rules(**BETTER)
    lived = live(events(600, now_ms=NOW_MS), bad)

    total = replayed(lived, bad, better)
    back = replayed(live(events(600, now_ms=NOW_MS), better), better, bad)

    assert total.changed[0].ended[Ended.EXHAUSTED] < 0.5 * total.history.ended[Ended.EXHAUSTED]
    # What succeeded late would have been exhausted before: even the best case of the bad policy is worse.
    assert min(one.ended[Ended.EXHAUSTED] for one in back.changed) > 2 * back.history.ended[Ended.EXHAUSTED]


def test_a_rule_that_makes_an_error_final_spares_its_attempts() -> None:
    was = rules(**JITTERED)
    final = rules(**JITTERED, errors=[{"type": "ValueError", "class": "final"}])
    helped, lost = (live(of, was) for of in (events(100, now_ms=NOW_MS), useless(50, now_ms=NOW_MS)))

    total = replayed(Lived(rows=[*helped.rows, *lost.rows]), was, final)

    assert total.changed[0].attempts == total.changed[1].attempts == pytest.approx(helped.attempts)
    assert total.changed[0].ended[Ended.FINAL] == 50
    assert total.history.attempts == helped.attempts + lost.attempts


def test_a_message_that_was_held_arrives_when_its_hold_ended() -> None:
    was = rules(**TOO_SHORT)
    (row,) = live([next(useless(1, now_ms=NOW_MS))], was).rows
    late = [step._replace(at_ms=step.at_ms + 3_600_000) if step.state == "returned" else step for step in row.steps[:2]]
    end = ReplayStep(1, "succeeded", late[-1].at_ms, "reported", {})
    lived = Lived(rows=[row._replace(steps=[*late, end])])

    total = replayed(lived, was, was)

    assert numbers(total.history) == numbers(total.current[1]) == (1, 1, 0)
    assert total.current[0].mean_ms == total.history.mean_ms


@pytest.mark.parametrize("state", ["cancelled", "discarded", "recovered", "stuck"])
def test_a_message_that_somebody_touched_is_left_out(state: str) -> None:
    was = rules(**TOO_SHORT)
    (row,) = live([next(useless(1, now_ms=NOW_MS))], was).rows
    touched = row._replace(steps=[*row.steps[:1], ReplayStep(1, state, row.steps[0].at_ms + 1, None, {})])

    assert message_history(touched, was, lambda _queue, _mark: None) is None
    assert message_history(_retried_now(row), was, lambda _queue, _mark: None) is None
    assert message_history(row, was, lambda _queue, _mark: None) is not None


def _retried_now(row: MessageRow) -> MessageRow:
    return row._replace(steps=[*row.steps, ReplayStep(9, "scheduled", NOW_MS, "retry now: please", {})])


def test_what_was_given_up_counts_as_it_was_whatever_the_changed_policy_says() -> None:
    """A replay takes decisions from history as they were: they depend on what other messages went through."""
    was, then = rules(**TOO_SHORT, adaptive={"after": 50}), rules(**BETTER)
    about = {"policy": "orders", "class": "retryable", "fingerprint": "f" * 16}
    why = "given up: 0 of 412 retries of this error succeeded (below 1%)"
    steps = [ReplayStep(1, "in_review", NOW_MS - DAY_MS, why, about)]
    row = MessageRow(
        "a", "orders", None, None, None, None, "ValueError", "no such order", "f" * 16, NOW_MS - DAY_MS, steps
    )

    total = replayed(Lived([row]), was, then)

    for tally in (total.history, *total.current, *total.changed):
        assert (tally.attempts, tally.ended[Ended.REVIEWED]) == (0, 1)

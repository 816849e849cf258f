"""Advice from histories whose truth is known, and from single counts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarry.analytics.advise import Advice, AdviceKind, advise, bounds
from tarry.analytics.rollups import KnownError, Statistic, StatisticCounts
from tarry.core.fingerprint import fingerprint
from tarry.core.policy import Policy
from tarry.topology.model import Topology
from tests.support.histories import events, known_errors, live, statistics_of, useless

NOW_MS = 1_900_000_000_000
DAY = datetime(2030, 1, 1, tzinfo=UTC)

HEALTHY = {"backoff": {"base": "30s", "factor": 3, "cap": "30m"}, "max_retries": 6}


def policy(**values: Any) -> Policy:
    return Topology.model_validate({"policy": [{"name": "orders", **values}]}).policies[0]


def counts(
    attempts: Mapping[int, tuple[int, int]], one: Policy, *, error: str = "", days: int = 5, slow: float = 1.0
) -> list[Statistic]:
    """Succeeded and failed by attempt, on each of some days; successes come when the policy returns them."""
    found = []
    for day in range(days):
        for attempt, (succeeded, failed) in attempts.items():
            took = round(succeeded * slow * sum(one.delay(number) for number in range(attempt)))
            about = StatisticCounts(scheduled=succeeded + failed, succeeded=succeeded, failed=failed, success_ms=took)
            starts = DAY + timedelta(days=day)
            found.append(Statistic(about, starts, policy=one.name, error=error, attempt=attempt))
    return found


def kinds(found: list[Advice]) -> list[AdviceKind]:
    return [one.kind for one in found]


def known(error_type: str, reason: str, *, error_class: str = "retryable") -> KnownError:
    return KnownError(fingerprint(error_type, reason) or "", error_class, error_type, reason)


def test_advise_names_the_useless_retry_and_nothing_else() -> None:
    healthy = policy(**HEALTHY)
    rules = Topology.model_validate({"policy": [{"name": "orders", **HEALTHY}]}).rules
    lived = live([*events(900, now_ms=NOW_MS), *useless(300, now_ms=NOW_MS)], rules)

    (found,) = advise(statistics_of(lived.rows), known_errors(lived.rows), [healthy])

    assert (found.kind, found.error_type, found.succeeded) == (AdviceKind.USELESS_RETRIES, "ValueError", 0)
    assert found.what.startswith("0 of 1,800 retries after ValueError succeeded")
    assert found.change is not None
    rule = {"type": "ValueError", "reason": "the card was declined", "class": "final"}
    assert found.change.now == {"errors": [rule]}
    assert policy(**HEALTHY, **found.change.now).classify("ValueError", "the card was declined") == "final"


@pytest.mark.parametrize("seed", range(5))
def test_advise_has_nothing_to_say_about_a_healthy_history(seed: int) -> None:
    rules = Topology.model_validate({"policy": [{"name": "orders", **HEALTHY}]}).rules
    lived = live(events(1_500, now_ms=NOW_MS, seed=seed), rules)

    assert advise(statistics_of(lived.rows), known_errors(lived.rows), [policy(**HEALTHY)]) == []


def test_advise_does_not_judge_by_few_retries_or_by_one_outage() -> None:
    error, one = known("ValueError", "declined"), policy(**HEALTHY)
    errors = {error.fingerprint: error}

    few = counts({1: (0, 15), 2: (0, 15)}, one, error=error.fingerprint)
    outage = counts({1: (0, 900), 2: (0, 900)}, one, error=error.fingerprint, days=2)
    some_succeed = counts({1: (4, 90), 2: (1, 90)}, one, error=error.fingerprint)

    assert [advise(found, errors, [one]) for found in (few, outage, some_succeed)] == [[], [], []]


def test_advise_leaves_rate_limits_and_final_errors_alone() -> None:
    limited, final = known("TooMany", "slow down", error_class="rate_limited"), known("ValueError", "declined")
    one = policy(**HEALTHY, errors=[{"type": "ValueError", "class": "final"}])
    found = [
        *counts({1: (0, 200)}, one, error=limited.fingerprint),
        *counts({1: (0, 200)}, one, error=final.fingerprint),
    ]

    assert advise(found, {error.fingerprint: error for error in (limited, final)}, [one]) == []


def test_advise_makes_a_rule_for_what_the_fingerprint_stands_for() -> None:
    error = known("app.Missing", "order 4711 [eu*] not found in 0x1f")
    one = policy(**HEALTHY, errors=[{"type": "TimeoutError", "class": "retryable"}])

    (found,) = advise(counts({1: (0, 200)}, one, error=error.fingerprint), {error.fingerprint: error}, [one])

    assert found.change is not None
    rule, kept = found.change.now["errors"]
    assert rule == {"type": "app.Missing", "reason": "order * [[]eu[*]] not found in *", "class": "final"}
    assert kept == {"type": "TimeoutError", "class": "retryable"}
    changed = policy(**HEALTHY, errors=found.change.now["errors"])
    assert changed.classify("app.Missing", "order 12 [eu*] not found in 0xff") == "final"
    assert changed.classify("app.Missing", "order 12 [us*] not found in 0xff") == "retryable"


@pytest.mark.parametrize(
    ("error", "other", "why"),
    [
        (known("E", "a 1 b"), known("E", "a x b"), "others too"),
        (known("E", "no", error_class="final"), None, "name the error class themselves"),
        (known("", "4711"), None, "and no other"),
        (None, None, "not known"),
    ],
)
def test_advise_has_no_change_where_no_rule_is_exact(
    error: KnownError | None, other: KnownError | None, why: str
) -> None:
    one = policy(**HEALTHY)
    mark = error.fingerprint if error else "f00d"
    found = counts({1: (0, 200)}, one, error=mark)
    errors = {one.fingerprint: one for one in (error, other) if one is not None}
    found += counts({1: (80, 20)}, one, error=other.fingerprint) if other else []

    (advice,) = advise(found, errors, [one])

    assert advice.change is None
    assert why in (advice.no_change or "")


@pytest.mark.parametrize(
    ("values", "now"),
    [
        (
            {"schedule": ["1s", "1s", "1s", "1m", "5m"], "max_retries": 5},
            {"schedule": ["63s", "5m"], "max_retries": 2},
        ),
        ({"schedule": ["1s"], "max_retries": 8}, {"schedule": ["4s", "1s"], "max_retries": 5}),
        (
            {"backoff": {"base": "1s", "factor": 2, "cap": "10s"}, "max_retries": 6},
            {"backoff": {"base": "15s", "factor": 2.0, "cap": "15s"}, "max_retries": 3},
        ),
    ],
    ids=["schedule", "repeated", "backoff"],
)
def test_advise_says_that_delays_are_too_short(values: dict[str, Any], now: dict[str, Any]) -> None:
    one = policy(**values)
    found = advise(counts({1: (0, 200), 2: (1, 199), 3: (0, 199), 4: (150, 49), 5: (30, 19)}, one), {}, [one])

    (advice,) = [found for found in found if found.kind is AdviceKind.TOO_SHORT]

    assert advice.change is not None
    assert advice.change.now == now
    policy(**{**values, **now})  # does not raise


def test_advise_does_not_judge_delays_by_the_history_of_others() -> None:
    one = policy(schedule=["63s", "5m"], max_retries=2)
    before = counts({1: (0, 600), 2: (150, 50)}, one, slow=0.3)

    assert advise(before, {}, [one]) == []


@pytest.mark.parametrize(
    ("values", "now"),
    [
        ({"schedule": ["20m", "1h"], "max_retries": 2}, {"schedule": ["5m", "15m", "1h"], "max_retries": 3}),
        ({"schedule": ["20m"], "max_retries": 2}, {"schedule": ["5m", "15m", "20m"], "max_retries": 3}),
        (
            {"backoff": {"base": "20m", "factor": 2, "cap": "40m"}, "max_retries": 2, "max_retries_ceiling": 3},
            {
                "backoff": {"base": "5m", "factor": 2.0, "cap": "40m"},
                "max_retries": 4,
                "max_retries_ceiling": 4,
            },
        ),
        ({"backoff": {"base": "20m", "factor": 1, "cap": "20m"}, "max_retries": 2}, None),
    ],
    ids=["schedule", "repeated", "backoff", "constant"],
)
def test_advise_says_that_delays_are_too_long(values: dict[str, Any], now: dict[str, Any] | None) -> None:
    one = policy(**values)

    (advice,) = advise(counts({1: (495, 5), 2: (5, 0)}, one), {}, [one])

    assert advice.kind is AdviceKind.TOO_LONG
    assert (None if advice.change is None else advice.change.now) == now


def test_advise_names_a_cap_that_is_never_reached() -> None:
    one = policy(backoff={"base": "5s", "factor": 2, "cap": "1h"}, max_retries=4)
    reached = policy(backoff={"base": "5s", "factor": 2, "cap": "1h"}, max_retries=4, max_retries_ceiling=12)
    found = counts({1: (50, 50), 2: (25, 25)}, one)

    (advice,) = advise(found, {}, [one])

    assert (advice.kind, advice.change and advice.change.now) == (
        AdviceKind.UNUSED_CAP,
        {"backoff": {"base": "5s", "factor": 2.0, "cap": "40s"}},
    )
    assert advise(found, {}, [reached]) == []
    assert advise(counts({1: (5, 5)}, one), {}, [one]) == []  # hardly used


def test_bounds_are_wider_for_fewer_and_hold_the_share() -> None:
    assert bounds(0, 0) == (0, 1)
    for succeeded, number in ((0, 10), (0, 412), (5, 10), (412, 412)):
        low, high = bounds(succeeded, number)
        assert 0 <= low <= succeeded / number <= high <= 1
    assert bounds(0, 412).high < 0.02 < bounds(0, 300).high

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tarry.core.policy import Backoff, ErrorClass, ErrorRule, Match, Policy


def policy(**given: Any) -> Policy:
    return Policy.model_validate({"name": "p", "max_retries": 3, "schedule": ["1s"]} | given)


@pytest.mark.parametrize(
    ("match", "queue", "priority", "job_type", "fits"),
    [
        ({}, "orders", None, None, True),
        ({"queue": "orders.*"}, "orders.new", None, None, True),
        ({"queue": "orders.*"}, "orders", None, None, False),
        ({"queue": "Orders"}, "orders", None, None, False),
        ({"priority": "high"}, "orders", "high", None, True),
        ({"priority": "*"}, "orders", None, None, False),
        ({"priority": "high"}, "orders", "HIGH", None, True),
        ({"priority": "Very-High"}, "orders", "very_high", None, True),
        ({"priority": "very_*"}, "orders", "VERY-HIGH", None, True),
        ({"priority": "p[a-c]"}, "orders", "PB", None, True),
        ({"priority": "p[a-c]"}, "orders", "p-", None, False),
        ({"job_type": "pdf-*", "priority": "low"}, "orders", "low", "pdf-a4", True),
        ({"job_type": "pdf-*", "priority": "low"}, "orders", "high", "pdf-a4", False),
    ],
)
def test_a_policy_matches_when_every_part_given_does(
    match: dict[str, str], queue: str, priority: str | None, job_type: str | None, *, fits: bool
) -> None:
    assert Match(**match).fits(queue, priority, job_type) is fits


def test_a_backoff_grows_to_its_cap_and_stays_there() -> None:
    backoff = Backoff.model_validate({"base": "2s", "factor": 2, "cap": "60s"})
    assert [backoff.delay(count) for count in (0, 1, 2, 3, 4, 5, 6, 1_000_000)] == [
        *(2_000, 4_000, 8_000, 16_000, 32_000),
        *(60_000, 60_000, 60_000),
    ]


def test_the_last_entry_of_a_schedule_repeats() -> None:
    plain = policy(schedule=["1s", "5s"], max_retries=9)
    assert [plain.delay(count) for count in (0, 1, 2, 8)] == [1_000, 5_000, 5_000, 5_000]


def test_tiers_are_all_the_delays_that_a_request_can_reach() -> None:
    assert policy(schedule=["1s", "5s", "9s"], max_retries=2).tiers() == {1_000, 5_000}
    assert policy(schedule=["1s", "5s", "9s"], max_retries=2, max_retries_ceiling=3).tiers() == {1_000, 5_000, 9_000}
    assert policy(schedule=["1s"], max_retries=0).tiers() == {1_000}


@pytest.mark.parametrize(("written", "of_ten_seconds"), [("1s", 1_000), ("30%", 3_000), ("0%", 0), ("100%", 10_000)])
def test_jitter_is_a_duration_or_a_share_of_the_delay(written: str, of_ten_seconds: int) -> None:
    assert policy(jitter=written).longest_jitter(10_000) == of_ten_seconds


def test_the_first_rule_that_fits_decides_the_class() -> None:
    rules = [
        {"type": "*Timeout", "reason": "*gateway*", "class": "rate_limited"},
        {"type": "*Timeout", "class": "final"},
        {"reason": "*429*", "class": "rate_limited"},
    ]
    strict = policy(errors=rules)
    assert strict.classify("ReadTimeout", "bad gateway") is ErrorClass.RATE_LIMITED
    assert strict.classify("ReadTimeout", None) is ErrorClass.FINAL
    assert strict.classify(None, "HTTP 429") is ErrorClass.RATE_LIMITED
    assert strict.classify("KeyError", "x") is ErrorClass.RETRYABLE
    assert strict.rule_for("ReadTimeout", None) == ErrorRule.model_validate(rules[1])
    assert strict.rule_for("KeyError", "x") is None


def test_scaling_touches_every_duration_and_no_count() -> None:
    scaled = policy(schedule=["1m", "24h"], jitter="10s", max_age="3d").scaled(0.001)
    assert (scaled.schedule, scaled.jitter, scaled.max_age, scaled.max_retries) == ((60, 86_400), 10, 259_200, 3)
    backoff = policy(schedule=None, backoff={"base": "2s", "cap": "60s"}, jitter="30%").scaled(0.5)
    assert backoff.backoff is not None
    assert (backoff.backoff.base, backoff.backoff.cap, backoff.jitter) == (1_000, 30_000, 0.3)


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        ({"schedule": None}, "give either `schedule`"),
        ({"backoff": {"base": "1s", "cap": "2s"}}, "give either `schedule`"),
        ({"schedule": None, "backoff": {"base": "2s", "cap": "1s"}}, "the cap 1s is below the base 2s"),
        ({"max_retries_ceiling": 1}, "max_retries_ceiling 1 is below max_retries 3"),
        ({"jitter": "130%"}, "use a duration as in 1s, or a share from 0% to 100%"),
        ({"jitter": "x%"}, "use a duration as in 1s, or a share from 0% to 100%"),
        ({"schedule": ["soon"]}, "use ms, s, m, h or d"),
        ({"max_retries": -1}, "greater than or equal to 0"),
        ({"max_retries": 1001}, "less than or equal to 1000"),
        ({"name": "Big"}, "match pattern"),
        ({"shedule": ["1s"]}, "Extra inputs are not permitted"),
        ({"errors": [{"type": "x", "class": "fatal"}]}, "'final', 'retryable' or 'rate_limited'"),
    ],
)
def test_mistakes_in_a_policy_are_errors(given: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ValidationError, match=mistake):
        policy(**given)


@pytest.mark.parametrize("priority", [-1, 256, "high", 1.5])
def test_policy_return_priority_is_an_octet(priority: object) -> None:
    with pytest.raises(ValidationError, match="return_priority"):
        policy(return_priority=priority)


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ("Timeout", True),
        ("java.net.Timeout", True),
        ("Outer$Timeout", True),
        ("class java.net.Timeout", True),
        ("Net::Timeout", True),
        ("App\\Errors\\Timeout", True),
        ("java.net.Timeout: no. answer", True),
        ("java.net.ReadTimeout", False),
        ("Timeout.Handler", False),
        ("", False),
    ],
)
def test_error_rule_without_a_package_matches_the_name_in_any_package(given: str, *, fits: bool) -> None:
    assert ErrorRule.model_validate({"type": "Timeout", "class": "final"}).fits(given, None) is fits


def test_error_rule_with_a_package_matches_that_package_only() -> None:
    rule = ErrorRule.model_validate({"type": "java.net.*", "class": "final"})
    assert rule.fits("java.net.Timeout", None)
    assert not rule.fits("java.io.Timeout", None)
    assert not rule.fits("Timeout", None)

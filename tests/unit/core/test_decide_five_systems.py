"""The shipped policies against the systems they stand in for: every delay, cap, jitter range and end, as literals."""

from __future__ import annotations

import pytest

from tarry.core.decide import Failure, Review, Schedule, decide
from tarry.core.policy import ErrorClass
from tarry.topology.load import load, shipped

NOW = 1_700_000_000_000
RULES = load(shipped()).rules
S, M, H = 1_000, 60_000, 3_600_000
ALMOST_ONE = 0.999_999


def delays(failure: Failure, draw: float = 0.0) -> list[int]:
    """What each retry waits, until a person decides."""
    found: list[int] = []
    while True:
        decision = decide(
            Failure(
                failure.queue,
                retry_count=len(found),
                round=len(found),
                first_failed_ms=NOW,
                max_retries=failure.max_retries,
                priority=failure.priority,
            ),
            RULES,
            NOW,
            draw,
        )
        if isinstance(decision, Review):
            assert decision.reason == f"exhausted: {len(found)} of {len(found)} retries spent"
            return found
        assert decision.itinerary.tier_ms is not None, "every delay of a policy has a tier of its own"
        found.append(decision.itinerary.delay_ms)


SCHEDULES = {
    "S0 invoices": (Failure("invoices"), [2 * S, 4 * S, 8 * S]),
    "S0 invoices, ten retries asked for": (
        Failure("invoices", max_retries=10),
        [2 * S, 4 * S, 8 * S, 16 * S, 32 * S, 60 * S, 60 * S, 60 * S, 60 * S, 60 * S],
    ),
    "S0 invoices, more asked for than anyone gets": (
        Failure("invoices", max_retries=1000),
        [2 * S, 4 * S, 8 * S, 16 * S, 32 * S, 60 * S, 60 * S, 60 * S, 60 * S, 60 * S],
    ),
    "S1 e-mail": (Failure("email.outbound"), [M, 5 * M, 15 * M, H, 3 * H, 6 * H, 12 * H, 24 * H]),
    "S2 runs": (Failure("runs.process"), [M, 2 * M, 4 * M, 8 * M, 16 * M, 32 * M, H, H]),
    "S3 critical": (
        Failure("notifications.push", priority="critical"),
        [10 * S, 20 * S, 40 * S, 80 * S, 160 * S, *[5 * M] * 5],
    ),
    "S3 high": (
        Failure("notifications.push", priority="high"),
        [30 * S, M, 2 * M, 4 * M, 8 * M, 15 * M, 15 * M, 15 * M],
    ),
    "S3 medium": (Failure("notifications.push", priority="medium"), [2 * M, 4 * M, 8 * M, 16 * M, 32 * M]),
    "S3 no priority": (Failure("notifications.push"), [2 * M, 4 * M, 8 * M, 16 * M, 32 * M]),
    "S3 low": (Failure("notifications.push", priority="low"), [5 * M, 10 * M, 20 * M]),
    "S4 screenshots": (Failure("screenshots.jobs"), [5 * S, 25 * S, 125 * S]),
}


@pytest.mark.parametrize("system", SCHEDULES)
def test_the_schedule_is_the_systems_own(system: str) -> None:
    failure, expected = SCHEDULES[system]
    assert delays(failure) == expected


@pytest.mark.parametrize(
    ("system", "most"),
    [
        ("S0 invoices", [3 * S, 5 * S, 9 * S]),
        ("S1 e-mail", [M, 5 * M, 15 * M, H, 3 * H, 6 * H, 12 * H, 24 * H]),
        ("S2 runs", [M, 2 * M, 4 * M, 8 * M, 16 * M, 32 * M, H, H]),
        ("S4 screenshots", [5 * S, 25 * S, 125 * S]),
        # 30 %, cut to two octal digits of 125 ms so that it costs two hops at the most
        ("S3 critical", [13 * S, 26 * S, 52 * S, 104 * S, 208 * S, *[388 * S] * 5]),
        ("S3 low", [388 * S, 776 * S, 1_560 * S]),
    ],
)
def test_the_longest_jitter(system: str, most: list[int]) -> None:
    failure, least = SCHEDULES[system]
    assert delays(failure, ALMOST_ONE) == most
    assert all(high <= low * 1.3 or high <= low + S for low, high in zip(least, most, strict=True))


def decision_for(failure: Failure) -> Schedule | Review:
    return decide(failure, RULES, NOW, 0.0)


@pytest.mark.parametrize(
    ("queue", "error_type", "reason", "expected"),
    [
        ("runs.process", "schema.ValidationError", None, ErrorClass.FINAL),
        ("runs.process", "ModelNotFoundError", None, ErrorClass.FINAL),
        ("runs.process", "RateLimitError", None, ErrorClass.RATE_LIMITED),
        ("runs.process", "HttpError", "status 429 from upstream", ErrorClass.RATE_LIMITED),
        ("runs.process", "TimeoutError", None, ErrorClass.RETRYABLE),
        ("notifications.push", "DeviceInactiveError", None, ErrorClass.FINAL),
        ("notifications.push", "ConnectionError", None, ErrorClass.RETRYABLE),
        ("screenshots.jobs", "InvalidUrlError", None, ErrorClass.FINAL),
        ("screenshots.jobs", "ForbiddenError", None, ErrorClass.FINAL),
        ("screenshots.jobs", "RateLimitError", None, ErrorClass.RATE_LIMITED),
        ("screenshots.jobs", "NavigationTimeout", None, ErrorClass.RETRYABLE),
        ("screenshots.jobs", "GeneralSecurityException", None, ErrorClass.RETRYABLE),
        ("screenshots.jobs", "rejected", None, ErrorClass.RETRYABLE),
        ("email.outbound", "anything", None, ErrorClass.RETRYABLE),
    ],
)
def test_errors_are_classed_as_the_system_wants(
    queue: str, error_type: str, reason: str | None, expected: ErrorClass
) -> None:
    decision = decision_for(Failure(queue, error_type=error_type, error_reason=reason))
    assert decision.error_class is expected
    assert isinstance(decision, Review) == (expected is ErrorClass.FINAL)


S4_ERRORS = {
    "SocketTimeoutException": ErrorClass.RETRYABLE,
    "ConnectException": ErrorClass.RETRYABLE,
    "IOException": ErrorClass.RETRYABLE,
    "IllegalArgumentException": ErrorClass.FINAL,
    "SecurityException": ErrorClass.FINAL,
    "IllegalStateException": ErrorClass.FINAL,
    "InsufficientCredits": ErrorClass.FINAL,
}
FORMS = ("{}", "java.net.{}", "com.example.Shots${}", "class java.lang.{}", "java.io.{}: it. failed: again")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", S4_ERRORS)
def test_s4_error_table(error: str, form: str) -> None:
    """By a rule of the policy, not by the default for unknown errors."""
    failure, policy = Failure("screenshots.jobs", error_type=form.format(error)), RULES.policies[6]
    rule = policy.rule_for(failure.error_type, None)
    assert policy.name == "screenshots"
    assert rule is not None
    assert rule.type.rstrip("*") == error
    decision = decision_for(failure)
    assert decision.error_class is S4_ERRORS[error]
    assert isinstance(decision, Review) == (S4_ERRORS[error] is ErrorClass.FINAL)


def test_a_rate_limited_run_waits_as_told_and_spends_no_attempt() -> None:
    limited = Failure("runs.process", retry_count=8, error_class=ErrorClass.RATE_LIMITED, retry_after_ms=90 * S)
    decision = decision_for(limited)
    assert isinstance(decision, Schedule)
    assert (decision.itinerary.delay_ms, decision.retry_count) == (90 * S, 8)
    old = Failure("runs.process", error_class=ErrorClass.RATE_LIMITED, retry_after_ms=M, first_failed_ms=NOW - 72 * H)
    assert decision_for(old) == Review(
        RULES.policies[1],
        ErrorClass.RATE_LIMITED,
        "exhausted: due later than 3d after its first failure",
        exhausted=True,
    )
    tired = Failure("runs.process", round=200, error_class=ErrorClass.RATE_LIMITED, retry_after_ms=M)
    assert isinstance(decision_for(tired), Review)

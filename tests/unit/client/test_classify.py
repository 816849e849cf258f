from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import requests

from tarry.client import Classes, Final, RateLimited, Verdict, check_response

NOW = 1_700_000_000_000
IN_A_MINUTE = "Tue, 14 Nov 2023 22:14:20 GMT"


def httpx_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    asked = httpx.Request("GET", "https://example.org")
    return httpx.HTTPStatusError("busy", request=asked, response=httpx.Response(status, headers=headers, request=asked))


def requests_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers or {})
    return requests.HTTPError("busy", response=response)


def aiohttp_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    error: Any = RuntimeError("busy")
    error.status, error.headers = status, headers
    return RuntimeError("busy") if status == 200 else error


@pytest.mark.parametrize("library", [httpx_error, requests_error, aiohttp_error])
@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"Retry-After": "120"}, Verdict("rate_limited", 120_000)),
        (503, {"retry-after": IN_A_MINUTE}, Verdict("rate_limited", 60_000)),
        (429, {"Retry-After": "0.25"}, Verdict("rate_limited", 250)),
        (429, {}, Verdict("rate_limited")),
        (429, {"Retry-After": "soon"}, Verdict("rate_limited")),
        (429, {"Retry-After": "-5"}, Verdict("rate_limited")),
        (503, {"Retry-After": "Tue, 14 Nov 2000 22:14:20 GMT"}, Verdict("rate_limited")),
        (429, {"Retry-After": "1e400"}, Verdict("rate_limited")),
        (500, {"Retry-After": "5"}, Verdict()),
        (404, {}, Verdict()),
    ],
)
def test_answers_of_busy_servers_are_understood(
    library: Any, status: int, headers: dict[str, str], expected: Verdict
) -> None:
    assert Classes().judge(library(status, headers), NOW) == expected


def test_an_error_without_a_response_is_a_plain_one() -> None:
    for error in (httpx.ConnectError("no"), requests.ConnectionError("no"), ValueError("no")):
        assert Classes().judge(error, NOW) == Verdict()


@pytest.mark.parametrize(
    ("wait", "ms"),
    [
        (2, 2_000),
        (0.0001, 1),
        (timedelta(minutes=1), 60_000),
        (datetime.fromtimestamp(NOW / 1_000 + 5, UTC), 5_000),
        (datetime.fromtimestamp(NOW / 1_000 - 5, UTC), None),
        (0, None),
        (None, None),
    ],
)
def test_a_rate_limit_may_say_when_in_three_ways(wait: Any, ms: int | None) -> None:
    assert Classes().judge(RateLimited(retry_after=wait), NOW) == Verdict("rate_limited", ms)


def test_the_nearest_entry_of_the_table_counts() -> None:
    classes = Classes({Exception: "retryable", LookupError: "final", KeyError: "rate_limited"})
    assert classes.judge(KeyError(), NOW) == Verdict("rate_limited")
    assert classes.judge(IndexError(), NOW) == Verdict("final")
    assert classes.judge(ValueError(), NOW) == Verdict("retryable")


def test_an_entry_may_look_into_the_error_or_pass_the_question_on() -> None:
    def judge(error: BaseException) -> Verdict | None:
        return Verdict("final") if "gone" in str(error) else None

    classes = Classes({OSError: judge})
    assert classes.judge(ConnectionError("gone"), NOW) == Verdict("final")
    assert classes.judge(ConnectionError("busy"), NOW) == Verdict()


def test_what_an_error_was_raised_from_counts_where_the_error_says_nothing() -> None:
    error = RuntimeError("the shop is busy")
    error.__cause__ = httpx_error(429, {"Retry-After": "7"})
    assert Classes().judge(error, NOW) == Verdict("rate_limited", 7_000)
    assert Classes({RuntimeError: "final"}).judge(error, NOW) == Verdict("final")


def test_errors_that_are_their_own_cause_end() -> None:
    error = ValueError()
    error.__cause__ = error
    assert Classes().judge(error, NOW) == Verdict()


def test_final_is_final() -> None:
    assert Classes().judge(Final("no such order"), NOW) == Verdict("final")


def test_a_table_with_a_word_that_is_no_class_is_refused() -> None:
    with pytest.raises(ValueError, match="ValueError cannot be of the class 'fatal'"):
        Classes({ValueError: "fatal"})  # type: ignore[dict-item]


def test_a_response_can_be_checked_by_hand() -> None:
    check_response(SimpleNamespace(status_code=200, headers={}))
    with pytest.raises(RateLimited, match="HTTP status 429") as found:
        check_response(SimpleNamespace(status_code=429, headers={"Retry-After": "3"}))
    assert found.value.retry_after == 3

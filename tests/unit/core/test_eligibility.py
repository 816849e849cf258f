from __future__ import annotations

import pytest
from pydantic import ValidationError

from tarry.core.eligibility import (
    FIRST_REST_S,
    LONGEST_REST_S,
    Answers,
    Eligibility,
    OnError,
    Outage,
    not_wanted,
)
from tarry.core.states import LONGEST_REASON, NOT_WANTED

URL = "http://user:secret@devices.internal:8080/eligible?x=1"


def rule(**given: object) -> Eligibility:
    return Eligibility.model_validate({"url": URL, "key": "device_id"} | given)


def test_eligibility_has_defaults_that_never_lose_a_retry() -> None:
    assert (rule().timeout, rule().cache, rule().on_error) == (1_000, 30_000, OnError.ALLOW)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"url": None}, 'give `url` or `url_env` .* Only with at = "due"'),
        ({"url": None, "at": ["schedule", "due"]}, "give `url` or `url_env`"),
        ({"key": None}, "give `key`, the header"),
        ({"url": None, "at": "due"}, "`key` is sent to an endpoint, and there is none: give `url` or `url_env`"),
        ({"at": "later"}, "at"),
        ({"at": []}, "at"),
        ({"at": ["due", "due"]}, "name each moment once"),
        ({"at": "due", "on_error": "skip"}, 'on_error = "skip" is not possible with at = "due"'),
        ({"at": "due", "answer_within": "0s"}, "answer_within"),
        ({"at": "due", "answer_within": "25h"}, "answer_within"),
        ({"url_env": "URL"}, "and not both"),
        ({"url": "devices.internal"}, "write http://host/path"),
        ({"url": "ftp://devices.internal/"}, "write http://host/path"),
        ({"url": "http://devices.internal/eligible\n"}, "without spaces, line breaks or control characters"),
        ({"url": "http://devices\x00.internal/"}, "without spaces, line breaks or control characters"),
        ({"url": "http://devices.internal/a b"}, "without spaces, line breaks or control characters"),
        ({"url": None, "url_env": "NOT A NAME"}, "url_env"),
        ({"key": ""}, "key"),
        ({"timeout": "0s"}, "timeout"),
        ({"timeout": "31s"}, "timeout"),
        ({"on_error": "explode"}, "on_error"),
        ({"body": "x"}, "body"),
    ],
)
def test_eligibility_refuses_bad_values(given: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        rule(**given)


def test_eligibility_is_asked_when_scheduled_or_due_or_both() -> None:
    both = rule(at=["schedule", "due"])
    assert (both.asks_when_scheduled, both.asks_when_due) == (True, True)
    assert (rule().asks_when_scheduled, rule().asks_when_due) == (True, False)
    consumer = Eligibility.model_validate({"at": "due"})
    assert (consumer.asks_when_scheduled, consumer.asks_when_due, consumer.has_endpoint) == (False, True, False)
    assert (consumer.answer_within, consumer.endpoint({})) == (60_000, None)


def test_eligibility_describes_when_it_asks() -> None:
    assert (
        rule(at="due")
        .describe({})
        .startswith("http://devices.internal:8080/eligible is asked about device_id when it is due")
    )
    assert ", now and again when it is due; " in rule(at=["schedule", "due"]).describe({})
    described = Eligibility.model_validate({"at": "due", "answer_within": "90s"}).describe({})
    assert (
        described == "the consumer of its check queue decides when it is due; after 90s without a decision it returns"
    )


def test_eligibility_is_off_while_its_variable_is_empty() -> None:
    by_name = rule(url=None, url_env="DEVICES")
    assert by_name.endpoint({}) is by_name.endpoint({"DEVICES": " "}) is None
    assert by_name.endpoint({"DEVICES": "https://host/path"}) == "https://host/path"
    assert rule().endpoint({}) == URL
    with pytest.raises(ValueError, match="write http://host/path"):
        by_name.endpoint({"DEVICES": "host:password@path"})


def test_eligibility_describes_itself_without_credentials() -> None:
    text = rule().describe({})
    assert "http://devices.internal:8080/eligible is asked about device_id" in text
    assert "secret" not in text
    assert "DEVICES is not set" in rule(url=None, url_env="DEVICES").describe({})


def test_not_wanted_are_only_values_that_were_asked_about() -> None:
    found = not_wanted({"skip": {"a": "gone", "b": "", "other": "gone"}, "more": 1}, {"a", "b", "c"})
    assert found == {"a": "gone", "b": NOT_WANTED}
    assert len(not_wanted({"skip": {"a": "x" * 10_000}}, {"a"})["a"]) == LONGEST_REASON
    assert not_wanted({"skip": {}}, {"a"}) == {}


def test_not_wanted_escapes_half_a_character_in_a_reason() -> None:
    """An endpoint may cut its text in the middle of an emoji, as JavaScript's `slice` does. JSON allows that."""
    assert not_wanted({"skip": {"a": "of \ud83d"}}, {"a"})["a"].encode() == b"of \\ud83d"


@pytest.mark.parametrize(
    "answer", [None, [], {}, "no", {"skip": ["a"]}, {"skip": None}, {"skip": {"a": 1}}, {"skip": {"a": None}}]
)
def test_not_wanted_refuses_an_answer_of_another_form(answer: object) -> None:
    with pytest.raises(ValueError, match="skip"):
        not_wanted(answer, {"a"})


def test_answers_are_known_for_their_time() -> None:
    answers = Answers(keep_s=30)
    answers.remember({"a": None, "b": "gone"}, 100.0)
    assert answers.recall(["a", "b", "c"], 129.9) == ({"a": None, "b": "gone"}, ["c"])
    assert answers.recall(["a", "b"], 130.0) == ({}, ["a", "b"])
    answers.remember({"b": None}, 130.0)
    assert answers.recall(["b"], 130.0) == ({"b": None}, [])


def test_answers_are_not_kept_without_a_time() -> None:
    answers = Answers(keep_s=0)
    answers.remember({"a": "gone"}, 100.0)
    assert answers.recall(["a"], 100.0) == ({}, ["a"])


def test_answers_forget_the_oldest() -> None:
    answers = Answers(keep_s=30, most=3)
    answers.remember(dict.fromkeys("abc"), 100.0)
    answers.remember({"a": "gone", "d": None}, 101.0)
    assert answers.recall("abcd", 101.0) == ({"a": "gone", "c": None, "d": None}, ["b"])


def test_an_outage_rests_longer_while_it_lasts() -> None:
    outage = Outage()
    assert not outage.rests(0.0)
    assert outage.failed("down", 0.0)
    assert not outage.failed("down", 0.0), "a second request of the same moment"
    assert outage.rests(FIRST_REST_S - 0.01)
    assert not outage.rests(FIRST_REST_S)
    rests, now = [], FIRST_REST_S
    for _ in range(6):
        assert not outage.failed("still down", now)
        rest = 0.0
        while outage.rests(now + rest):
            rest += 0.5
        rests.append(rest)
        now += rest
    assert rests == [2.0, 4.0, 8.0, LONGEST_REST_S, LONGEST_REST_S, LONGEST_REST_S]
    assert outage.answered()
    assert not outage.answered()
    assert not outage.rests(now)
    assert outage.failed("again", now)
    assert not outage.rests(now + FIRST_REST_S)

"""`tarry review` as a person uses it: at the desk, and through the API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from tarry.cli.review import app
from tests.harness.waiting import wait_for
from tests.integration.api.calling import Installation
from tests.integration.review.reviewing import REVIEW, in_review, send_to_review
from tests.integration.router.serving import START, Place

pytestmark = pytest.mark.one_series

Review = Callable[..., tuple[int, str]]


@pytest.fixture(params=["at the desk", "through the api"])
def review(request: pytest.FixtureRequest, running: Installation, place: Place) -> Review:
    """Exit code, and what was said on both streams."""
    far = {"TARRY_API": running.url} if request.param == "through the api" else {}

    def run(*arguments: str, **more: Any) -> tuple[int, str]:
        done = CliRunner().invoke(app, arguments, env=place.environment | far, **more)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    return run


@pytest.fixture
def at_the_desk(place: Place) -> Review:
    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, arguments, env=place.environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    return run


def test_looking_shows_what_is_there_and_says_nothing_to_the_terminal(place: Place, review: Review) -> None:
    evil = "\x1b[2J\u202e\x9b31m [red]"
    body = f"{evil} second\nline".encode()
    send_to_review(place, place.origin("orders"), ["m1"], body=body, error_reason=evil, color=evil)
    for words in ((), ("list",), ("groups", "--by", "reason"), ("show", "m1", "--payload"), ("show", "m1", "--json")):
        code, said = review(*words)
        assert code == 0, said
        assert not set(said) & {"\x1b", "\u202e", "\x9b"}
    assert "1 in review by the books, 1 in the review queue" in review()[1]
    shown = review("show", "m1", "--payload")[1]
    assert "\\x1b[2J\\u202e\\x9b31m [red] second\nline" in shown
    assert "the error is final" in shown
    found = json.loads(review("list", "--json")[1])
    assert (found["items"][0]["message_id"], found["in_books"], found["in_queue"]) == ("m1", 1, 1)
    assert "body" not in found["items"][0]


def test_a_large_retry_is_asked_about_and_done_with_yes(place: Place, review: Review) -> None:
    orders = place.origin("orders")
    send_to_review(place, orders, [f"o{n}" for n in range(12)])
    code, said = review("retry", "--queue", "orders")
    assert (code, "would send on 12 messages" in said, place.depth(REVIEW)) == (2, True, 12)
    code, said = review("retry", "--queue", "orders", "--yes", "--set-header", "fixed:=true", "--json")
    job = json.loads(said)
    assert (code, job["state"], job["done"], job["manner"]["set_headers"]) == (0, "done", 12, {"fixed": True})
    assert len(set(place.take(orders, 12))) == 12


def test_one_is_edited_and_sent_elsewhere(place: Place, review: Review, tmp_path: Path) -> None:
    place.origin("bills")
    send_to_review(place, place.origin("orders"), ["m1", "m2"])
    fixed = tmp_path / "fixed"
    fixed.write_bytes(b"fixed")
    assert review("retry", "--queue", "orders", "--edit-body", str(fixed))[0] == 2
    code, said = review("retry", "m1", "--to", "bills", "--edit-body", str(fixed))
    assert (code, "1 of 1 sent on" in said) == (0, True)
    assert place.wait_message("bills")[1] == b"fixed"
    assert in_review(place) == 1


def test_exit_codes_tell_what_happened(place: Place, review: Review) -> None:
    send_to_review(place, place.origin("orders"), ["m1", "m2"])
    assert review("show", "nobody")[0] == 4
    assert review("retry", "--queue", "no such")[0] == 4
    assert review("retry")[0] == 2
    assert review("discard", "m1")[0] == 2
    assert review("retry", "m1", "--to", "nowhere")[0] == 1
    assert review("discard", "m1", "--reason", "spam")[0] == 0
    assert review("job", "00000000-0000-4000-8000-000000000000")[0] == 4
    assert in_review(place) == 1
    listed = json.loads(review("jobs", "--json")[1])
    assert [(one["kind"], one["done"], one["failed"]) for one in listed] == [("discard", 1, 0), ("redrive", 0, 1)]
    assert review("job", listed[0]["id"], "--stop")[0] == 6
    assert "the queue 'nowhere' does not exist" in review("job", listed[1]["id"])[1]


def test_in_the_background_the_service_does_it(place: Place, review: Review) -> None:
    send_to_review(place, place.origin("orders"), ["m1"])
    assert review("discard", "--queue", "*", "--reason", "old", "--background")[0] == 0
    wait_for(lambda: in_review(place) == 0, what="the service to do it")
    job = json.loads(review("jobs", "--json")[1])[0]
    assert job["kind"] == "discard"


def test_check_and_export_at_the_desk(place: Place, at_the_desk: Review, tmp_path: Path) -> None:
    send_to_review(place, place.origin("orders"), ["m1", "m2"])
    assert at_the_desk("check") == (0, "2 in the review queue, 2 in review by the books\n✓ queue and books agree\n")
    assert at_the_desk("export", "--queue", "*", "--into", str(tmp_path / "out"))[0] == 0
    assert len(list((tmp_path / "out").iterdir())) == 5
    code, said = at_the_desk("export", "m1", "--into", str(tmp_path / "out"))
    assert (code, "is not empty" in said) == (2, True)
    place.channel.basic_publish("", REVIEW, b"by hand")
    code, said = at_the_desk("check")
    assert (code, "without a tarry-id" in said) == (1, True)
    code, said = at_the_desk("check", "--adopt")
    assert (code, "1 adopted, 0 closed, 0 removed" in said) == (0, True)
    assert at_the_desk("check", "--api", "http://127.0.0.1:1")[0] == 2


def test_ctrl_c_stops_it_before_the_next_message_and_it_goes_on(place: Place, at_the_desk: Review) -> None:
    orders = place.origin("orders")
    send_to_review(place, orders, [f"o{n}" for n in range(30)])
    words = [sys.executable, "-m", "tarry", "review", "retry", "--queue", "orders", "--rate", "1", "--yes", "--json"]
    with subprocess.Popen(words, env=os.environ | place.environment, stdout=subprocess.PIPE) as process:
        wait_for(lambda: place.depth(orders) >= 2, deadline=START, what="a few to be sent on")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    job = json.loads(said)
    assert (process.returncode, job["state"]) == (130, "stopped")
    assert 2 <= job["done"] < 30
    with psycopg.connect(place.dsn) as books:
        books.execute("update review_job set rate = null")  # slow enough to be stopped in time; that was all
    code, answer = at_the_desk("job", job["id"][:8], "--go-on", "--json")
    assert (code, json.loads(answer)["state"]) == (0, "done")
    assert len(set(place.take(orders, 30))) == 30
    assert place.get(orders) is None

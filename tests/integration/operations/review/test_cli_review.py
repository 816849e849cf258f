"""`tarry review` as a person uses it: locally, and through the API."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.integration.operations.review.reviewing import REVIEW, in_review, send_to_review
from tests.support.api import ApiInstallation
from tests.support.cli import run_cli
from tests.support.installation import Installation
from tests.support.router import START
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

Review = Callable[..., tuple[int, str]]


@pytest.fixture(params=["local", "through the api"])
def review(request: pytest.FixtureRequest, running: ApiInstallation, installation: Installation) -> Review:
    """Exit code, and the output of both streams."""
    far = {"TARRY_API": running.url} if request.param == "through the api" else {}

    def run(*arguments: str) -> tuple[int, str]:
        done = run_cli(["review", *arguments], installation.environment | far)
        return done.exit_code, done.output

    return run


@pytest.fixture
def local_review(installation: Installation) -> Review:
    def run(*arguments: str) -> tuple[int, str]:
        done = run_cli(["review", *arguments], installation.environment)
        return done.exit_code, done.output

    return run


def test_looking_shows_what_is_there_and_says_nothing_to_the_terminal(
    installation: Installation, review: Review
) -> None:
    evil = "\x1b[2J\u202e\x9b31m [red]"
    body = f"{evil} second\nline".encode()
    send_to_review(installation, installation.declare("orders"), ["m1"], body=body, error_reason=evil, color=evil)
    for words in ((), ("list",), ("groups", "--by", "reason"), ("show", "m1", "--payload"), ("show", "m1", "--json")):
        code, output = review(*words)
        assert code == 0, output
        assert not set(output) & {"\x1b", "\u202e", "\x9b"}
    assert "1 in review according to the audit, 1 in the review queue" in review()[1]
    shown = review("show", "m1", "--payload")[1]
    assert "\\x1b[2J\\u202e\\x9b31m [red] second\nline" in shown
    assert "the error is final" in shown
    found = json.loads(review("list", "--json")[1])
    assert (found["items"][0]["message_id"], found["in_audit"], found["in_queue"]) == ("m1", 1, 1)
    assert "body" not in found["items"][0]


def test_a_large_retry_is_asked_about_and_done_with_yes(installation: Installation, review: Review) -> None:
    orders = installation.declare("orders")
    send_to_review(installation, orders, [f"o{n}" for n in range(12)])
    code, output = review("redrive", "--queue", "orders")
    assert (code, "would redrive 12 messages" in output, installation.depth(REVIEW)) == (2, True, 12)
    code, output = review("redrive", "--queue", "orders", "--yes", "--set-header", "fixed:=true", "--json")
    job = json.loads(output)
    assert (code, job["state"], job["done"], job["options"]["set_headers"]) == (0, "done", 12, {"fixed": True})
    assert len(set(installation.take_ids(orders, 12))) == 12


def test_one_is_edited_and_sent_elsewhere(installation: Installation, review: Review, tmp_path: Path) -> None:
    installation.declare("bills")
    send_to_review(installation, installation.declare("orders"), ["m1", "m2"])
    fixed = tmp_path / "fixed"
    fixed.write_bytes(b"fixed")
    assert review("redrive", "--queue", "orders", "--edit-body", str(fixed))[0] == 2
    code, output = review("redrive", "m1", "--to", "bills", "--edit-body", str(fixed))
    assert (code, "1 of 1 redriven" in output) == (0, True)
    assert installation.wait_message("bills")[1] == b"fixed"
    assert in_review(installation) == 1


def test_exit_codes_tell_what_happened(installation: Installation, review: Review) -> None:
    send_to_review(installation, installation.declare("orders"), ["m1", "m2"])
    assert review("show", "nobody")[0] == 4
    assert review("redrive", "--queue", "no such")[0] == 4
    assert review("redrive")[0] == 2
    assert review("discard", "m1")[0] == 2
    assert review("redrive", "m1", "--to", "nowhere")[0] == 1
    assert review("discard", "m1", "--reason", "spam")[0] == 0
    assert review("job", "00000000-0000-4000-8000-000000000000")[0] == 4
    assert in_review(installation) == 1
    listed = json.loads(review("jobs", "--json")[1])
    assert [(one["kind"], one["done"], one["failed"]) for one in listed] == [("discard", 1, 0), ("redrive", 0, 1)]
    assert review("job", listed[0]["id"], "--stop")[0] == 6
    assert "the queue 'nowhere' does not exist" in review("job", listed[1]["id"])[1]


def test_in_the_background_the_service_does_it(installation: Installation, review: Review) -> None:
    send_to_review(installation, installation.declare("orders"), ["m1"])
    assert review("discard", "--queue", "*", "--reason", "old", "--background")[0] == 0
    wait_for(lambda: in_review(installation) == 0, what="the service to do it")
    job = json.loads(review("jobs", "--json")[1])[0]
    assert job["kind"] == "discard"


def test_check_and_export(installation: Installation, review: Review, tmp_path: Path) -> None:
    send_to_review(installation, installation.declare("orders"), ["m1", "m2"])
    code, output = review("check")
    first, *others, last = output.splitlines()
    assert (code, first) == (0, "2 in the review queue, 2 in review according to the audit")
    assert last == "✓ queue and audit agree"
    # The broker's count of unacknowledged messages is some seconds old: an earlier test may be in it.
    assert all("were unacknowledged at other consumers when the check began" in line for line in others)
    assert review("export", "--queue", "*", "--into", str(tmp_path / "out"))[0] == 0
    assert len(list((tmp_path / "out").iterdir())) == 5
    code, output = review("export", "m1", "--into", str(tmp_path / "out"))
    assert (code, "is not empty" in output) == (2, True)
    installation.channel.basic_publish("", REVIEW, b"by hand")
    code, output = review("check")
    assert (code, "without a tarry-id" in output) == (1, True)
    code, output = review("check", "--adopt")
    assert (code, "1 adopted, 0 closed, 0 removed" in output) == (0, True)
    [message] = json.loads((tmp_path / "out" / "index.json").read_text())["messages"][:1]
    about = json.loads((tmp_path / "out" / message["body"].replace(".body", ".json")).read_text())
    assert (about["queue"], about["properties"]["message_id"]) == ("orders", about["message_id"])
    assert base64.b64decode(about["properties_on_the_wire"])


def test_ctrl_c_stops_it_before_the_next_message_and_it_goes_on(
    installation: Installation, local_review: Review
) -> None:
    orders = installation.declare("orders")
    send_to_review(installation, orders, [f"o{n}" for n in range(30)])
    words = [sys.executable, "-m", "tarry", "review", "redrive", "--queue", "orders", "--rate", "2", "--yes", "--json"]
    with subprocess.Popen(words, env=os.environ | installation.environment, stdout=subprocess.PIPE) as process:
        wait_for(lambda: installation.depth(orders) >= 2, deadline=START, what="a few to be redriven")
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]
    job = json.loads(output)
    assert (process.returncode, job["state"]) == (130, "stopped")
    assert 2 <= job["done"] < 30
    with psycopg.connect(installation.dsn) as connection:
        connection.execute("update review_job set rate = null")  # the rate was only needed to stop it in time
    code, answer = local_review("job", job["id"][:8], "--resume", "--json")
    assert (code, json.loads(answer)["state"]) == (0, "done")
    assert len(set(installation.take_ids(orders, 30))) == 30
    assert installation.get(orders) is None

"""An owner from the request to the audit and back: every form, every round, review and redrive."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pika

from tests.support.cli import run_cli
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.waiting import wait_for

Start = Callable[..., Router]
ABOUT = {"policy": "default", "class": "retryable", "owner": "acme"}


def answer(installation: Installation, *words: str) -> Any:
    return json.loads(run_cli([*words, "--json"], installation.environment).stdout)


def details(installation: Installation, message: str, state: str) -> list[dict[str, Any]]:
    sql = """
    select detail from transition join retry on retry.id = retry_id
     where message_id = %s and transition.state = %s order by transition.id
    """
    return [row[0] for row in installation.rows(sql, message, state)]


def test_an_owner_returns_with_its_message_and_is_in_each_step(installation: Installation, start: Start) -> None:
    start().wait_ready()
    queue = installation.declare("orders")
    installation.request(
        queue, "m1", owner="acme", job_type="pdf", priority="high", error_type="Timeout", retry_after_ms=10
    )
    for _ in range(2):
        properties, body = installation.wait_message(queue)
        assert properties.headers is not None
        assert properties.headers["owner"] == "acme"
        failed = pika.BasicProperties(message_id="m1", headers={**properties.headers, "original_queue": queue})
        installation.channel.basic_publish("", "retry.scheduled", body, failed, mandatory=True)
    installation.wait_message("manual-review.pending")
    ((retry, _),) = wait_for(lambda: [one for one in installation.states("m1") if one[1] == "in_review"])
    about = installation.rows("select owner, job_type, priority from retry")
    assert about == [("acme", "pdf", "high")]
    first, second = details(installation, "m1", "scheduled")
    ((mark,),) = installation.rows("select fingerprint from retry")
    assert ABOUT.items() <= second.items()
    assert (first["fingerprint"], first["hint_ms"], "hint_ms" in second) == (mark, 10, False)
    (reviewed,) = details(installation, "m1", "in_review")
    assert reviewed == ABOUT, "its last failure said nothing about the error"
    listed = answer(installation, "review", "list", "--owner", "acme")["items"]
    assert [(one["retry_id"], one["owner"]) for one in listed] == [(retry, "acme")]
    assert answer(installation, "review", "list", "--owner", "other")["items"] == []
    (group,) = answer(installation, "review", "groups", "--by", "owner")
    assert (group["key"], group["count"]) == ("acme", 1)
    (timeline,) = answer(installation, "history", "m1")
    assert (timeline["owner"], timeline["job_type"], timeline["priority"]) == ("acme", "pdf", "high")


def test_an_owner_in_an_envelope_survives_review_and_redrive(installation: Installation, start: Start) -> None:
    start().wait_ready()
    queue = installation.declare("orders")
    envelope = {
        "message_id": "e1",
        "original_queue": queue,
        "original_payload": b64encode(b"payload").decode(),
        "owner": "acme",
    }
    about = pika.BasicProperties(content_type="application/json", headers={"error_class": "final"}, delivery_mode=2)
    installation.channel.basic_publish("", "retry.scheduled", json.dumps(envelope).encode(), about, mandatory=True)
    wait_for(lambda: [one for one in installation.states("e1") if one[1] == "in_review"], what="it to be in review")
    job = answer(installation, "review", "redrive", "--owner", "acme", "--yes")
    assert (job["done"], job["filter"]) == (1, {"owner": "acme"})
    properties, body = installation.wait_message(queue)
    assert properties.headers is not None
    assert (body, properties.headers["owner"]) == (b"payload", "acme")
    (step,) = details(installation, "e1", "scheduled")
    assert step["owner"] == "acme"

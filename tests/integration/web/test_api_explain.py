"""`tarry explain --api`: the answer of the running service is the answer of the files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import LOOK, ApiInstallation
from tests.support.cli import run_cli

pytestmark = pytest.mark.one_series


def explain(api: ApiInstallation, *arguments: str, through: bool, as_json: bool = True) -> Any:
    more = ["--api", api.url, "--token", str(api.token)] if through else []
    words = ["explain", *arguments, *(["--json"] if as_json else []), *more]
    done = run_cli(words, api.installation.environment)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if as_json else done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--queue", "slow.explained", "--count", "1", "--error-type", "Timeout"],
        ["--queue", "slow.explained", "--class", "final"],
        ["--schedule"],
    ],
)
def test_explain_is_the_same_through_the_api(api: ApiInstallation, arguments: list[str]) -> None:
    near, far = explain(api, *arguments, through=False), explain(api, *arguments, through=True)
    for one in (near, far):
        if isinstance(one, dict):
            one.pop("due")  # a moment later
            one["topology"].pop("folder")
    assert near == far
    shown = explain(api, *arguments, through=True, as_json=False)
    assert "policy" in shown or "retry" in shown


def test_explain_reads_the_first_message_of_a_queue_through_the_api(api: ApiInstallation) -> None:
    queue = api.installation.declare("explained.first")
    assert api.call("POST", "/explain/first", json={"queue": queue}).status_code == 422
    api.installation.channel.basic_publish("", queue, b"work")
    answer = explain(api, "--peek", queue, through=True)
    assert (answer["queue"], answer["outcome"]) == (queue, "schedule")
    missing = api.call("POST", "/explain/first", json={"queue": "no.such.queue"})
    assert (missing.status_code, "no queue 'no.such.queue'" in missing.json()["detail"]) == (404, True)


def test_explain_refuses_what_is_no_message(api: ApiInstallation) -> None:
    answer = api.call("POST", "/explain", json={"messages": [{"properties": 3}]})
    assert (answer.status_code, "does not contain a message" in answer.json()["detail"]) == (422, True)
    assert api.call("POST", "/explain", json={"messages": [{}]}, token=LOOK).status_code == 403

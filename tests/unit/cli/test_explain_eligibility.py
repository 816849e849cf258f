"""`tarry explain` says what an eligibility endpoint would be asked, and asks it if it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_cli
from tests.support.eligibility import Endpoint, eligibility_endpoint

SHIPPED = str(Path(__file__).parents[3] / "topology")
VARIABLE = "NOTIFICATIONS_ELIGIBILITY_URL"
QUEUE = ("--queue", "notifications.push")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with eligibility_endpoint() as made:
        made.inactive = {"d-2"}
        yield made


def explain(*arguments: str, url: str = "") -> Any:
    done = run_cli(["explain", "--topology", SHIPPED, *QUEUE, *arguments, "--json"], {VARIABLE: url})
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_explain_says_that_nothing_is_asked_without_an_endpoint() -> None:
    assert explain("--header", "device_id=d-2")["eligibility"] == f"not asked: {VARIABLE} is not set"


def test_explain_says_what_would_be_asked_and_asks_nothing(endpoint: Endpoint) -> None:
    found = explain("--header", "device_id=d-2", url=endpoint.url)
    assert found["outcome"] == "schedule"
    assert found["eligibility"] == f"{endpoint.url} is asked about device_id = 'd-2'; without an answer: allow"
    assert "no header 'device_id'" in explain(url=endpoint.url)["eligibility"]
    assert explain("--class", "final", "--header", "device_id=d-2", url=endpoint.url)["eligibility"] == ""
    assert endpoint.asked == []


def test_explain_shows_the_answer(endpoint: Endpoint) -> None:
    found = explain("--header", "device_id=d-2", "--ask", url=endpoint.url)
    assert (found["outcome"], found["reason"]) == ("skip", "device d-2 is inactive")
    assert explain("--header", "device_id=d-1", "--ask", url=endpoint.url)["eligibility"].endswith("It answers: wanted")
    shown = run_cli(
        ["explain", "--topology", SHIPPED, *QUEUE, "--header", "device_id=d-2", "--ask"], {VARIABLE: endpoint.url}
    )
    assert "skipped: device d-2 is inactive" in shown.stdout


def test_explain_shows_that_there_is_no_answer(endpoint: Endpoint) -> None:
    endpoint.status = 500
    found = explain("--header", "device_id=d-2", "--ask", url=endpoint.url)
    assert found["outcome"] == "schedule"
    assert "no answer now: a bad answer: status 500" in found["eligibility"]


def test_explain_shows_the_endpoint_of_a_schedule(endpoint: Endpoint) -> None:
    command = ["explain", "--topology", SHIPPED, "--schedule", "--policy", "notify-high"]
    assert f"Before each retry, {endpoint.url} is asked" in run_cli(command, {VARIABLE: endpoint.url}).stdout
    assert f"{VARIABLE} is not set" in run_cli(command, {VARIABLE: ""}).stdout


def test_a_bad_url_in_the_variable_is_refused_by_name() -> None:
    done = run_cli(["explain", "--topology", SHIPPED, *QUEUE], {VARIABLE: "devices:secret"})
    assert done.exit_code != 0
    assert f"{VARIABLE} (environment), the eligibility endpoint of policy notify-critical: write http" in done.output
    assert "secret" not in done.output


def test_a_header_without_a_value_is_refused() -> None:
    done = run_cli(["explain", "--topology", SHIPPED, *QUEUE, "--header", "device_id"], {})
    assert "write NAME=VALUE" in done.output


def explain_due(folder: Path, eligibility: str, *arguments: str) -> Any:
    policy = f'name = "n"\nschedule = ["2s"]\nmax_retries = 2\neligibility = {{ {eligibility} }}\n'
    (folder / "tarry.toml").write_text(f"[[policy]]\n{policy}", encoding="utf-8")
    done = run_cli(["explain", "--topology", str(folder), *QUEUE, *arguments, "--json"], {})
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_explain_says_what_is_asked_when_it_is_due(endpoint: Endpoint, tmp_path: Path) -> None:
    rule = f'at = "due", url = "{endpoint.url}", key = "device_id"'
    found = explain_due(tmp_path, rule, "--header", "device_id=d-2", "--ask")
    asked = f"{endpoint.url} is asked about device_id = 'd-2' when it is due (check queue retry.check.1m.n)"
    assert found["outcome"] == "schedule"
    assert found["eligibility"].startswith(f"{asked}; without an answer: allow. It answers: not wanted (device d-2 is")
    found = explain_due(tmp_path, rule.replace('"due"', '["schedule", "due"]'), "--header", "device_id=d-2", "--ask")
    assert (found["outcome"], found["reason"]) == ("skip", "device d-2 is inactive")


def test_explain_names_the_check_queue_that_a_consumer_reads(tmp_path: Path) -> None:
    found = explain_due(tmp_path, 'at = "due", answer_within = "30s"', "--ask")
    assert found["eligibility"] == (
        "the consumer of its check queue decides when it is due; after 30s without a decision it returns "
        "(check queue retry.check.30s.n)"
    )

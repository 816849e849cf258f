"""Policies against the history, as operators see them: replay and advice, with commands and over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tarry.client import Attempt, Options
from tarry.core.decide import Rulebook
from tarry.store.database import SessionSettings
from tarry.topology.load import load
from tests.integration.client.adapters import Blocking
from tests.integration.operations.terminal import Terminal
from tests.support.api import LOOK, TOKENS, ApiInstallation, api_installation
from tests.support.cli import run_cli
from tests.support.histories import Lived, count_statistics, events, live, store_rows, useless
from tests.support.hurry import HURRIED
from tests.support.installation import Installation
from tests.support.router import routers
from tests.support.services import Services
from tests.support.spaces import Database, SharedBroker, Vhost
from tests.support.store import in_session
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

POLICIES = """
[ladder]
levels = 4

[[policy]]
name = "orders"
match = { queue = "orders" }
schedule = ["5s", "5s", "5s"]
jitter = "20%"
max_retries = 3

[[policy]]
name = "default"
schedule = ["5m"]
max_retries = 3
"""

BETTER = """
[[policy]]
name = "orders"
match = { queue = "orders" }
backoff = { base = "30s", factor = 3, cap = "30m" }
max_retries = 6
"""


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """One service for this file."""
    folder = tmp_path_factory.mktemp("policies")
    (folder / "topology").mkdir()
    (folder / "topology" / "tarry.toml").write_text(POLICIES)
    with api_installation(broker, services, folder, **TOKENS) as made:
        yield made


@pytest.fixture(scope="module")
def rules(api: ApiInstallation) -> Rulebook:
    return load(api.installation.folder).rules


@pytest.fixture(scope="module")
def lived(api: ApiInstallation, rules: Rulebook) -> Lived:
    """A history whose delays are too short, with an error that never passes."""
    now = time.time_ns() // 1_000_000
    found = live([*events(900, now_ms=now), *useless(300, now_ms=now)], rules)
    store_rows(api.installation.dsn, found.rows)
    return found


def test_replay_reproduces_the_history_and_tells_a_better_policy(
    terminal: Terminal, lived: Lived, tmp_path: Path
) -> None:
    file = tmp_path / "better.toml"
    file.write_text(BETTER)

    found = terminal.json("policy", "replay", str(file), "--since", "7d")

    total = found["total"]
    history = {name: total["history"][name]["value"] for name in ("attempts", "succeeded", "exhausted")}
    assert history == {"attempts": lived.attempts, "succeeded": lived.succeeded, "exhausted": lived.exhausted}
    for name, value in history.items():
        assert total["current"][name] == pytest.approx({"value": value, "low": value, "high": value})
    assert found["error_percent"] == 0
    assert total["changed"]["exhausted"]["value"] < 0.6 * history["exhausted"]
    (change,) = found["changes"]
    assert change.startswith("orders: ")
    assert "schedule 5s 5s 5s → none" in change
    assert "max_retries 3 → 6" in change
    text = terminal.run("policy", "replay", str(file), "--since", "7d")
    assert f"{lived.attempts:,}" in text.stdout
    assert "An attempt that never happened has no outcome." in text.output


CARDS = """
[[policy]]
name = "cards"
match = { queue = "cards" }
schedule = ["1500ms", "3s"]
jitter = "20%"
max_retries = 2
errors = [{ type = "KeyError", class = "final" }]

[[policy]]
name = "default"
schedule = ["3s"]
max_retries = 2
"""
EACH = 10


def answer(attempt: Attempt, body: bytes) -> None:
    """One card works at the first retry, one at the second, one never; and one is unknown."""
    if body == b"unknown":
        raise KeyError("card")
    if attempt.round < {b"first": 1, b"second": 2, b"never": 9}[body]:
        raise TimeoutError("no answer")


def test_replay_reproduces_what_a_service_did(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    """Messages of a consumer, from the broker: the same policy gives the same figures, and a worse one others."""
    installation = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", CARDS)
    installation.apply().declare("cards")
    with routers(installation) as start:
        start(**HURRIED).wait_ready()
        with Blocking(installation.amqp_url, "cards", answer, Options(report_seconds=0.1)):
            for kind in ("first", "second", "never", "unknown"):
                for place in range(EACH):
                    about = pika.BasicProperties(delivery_mode=2, message_id=f"{kind}-{place}")
                    installation.channel.basic_publish("", "cards", kind.encode(), about, mandatory=True)
            ended = "select count(*) from retry where state in ('succeeded', 'in_review')"
            wait_for(lambda: installation.number(ended) == 4 * EACH, deadline=120, what="the end of all messages")

    def replay(toml: str) -> dict[str, Any]:
        words = ["policy", "replay", "-", "--since", "1h", "--json"]
        result = run_cli(words, installation.environment, stdin=toml)
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def figures(of: dict[str, Any]) -> list[tuple[float, float, float]]:
        names = ("attempts", "succeeded", "exhausted", "final")
        return [(of[name]["low"], of[name]["value"], of[name]["high"]) for name in names]

    found = replay(CARDS)
    happened = [(number, number, number) for number in (5 * EACH, 2 * EACH, EACH, EACH)]
    assert figures(found["total"]["history"]) == happened
    assert figures(found["total"]["current"]) == figures(found["total"]["changed"]) == happened
    assert (found["error_percent"], found["left_out"], found["changes"]) == (0, 0, [])
    worse = replay(CARDS.replace("max_retries = 2", "max_retries = 1", 1))
    once = [(number, number, number) for number in (3 * EACH, EACH, 2 * EACH, EACH)]
    assert figures(worse["total"]["changed"]) == once


def test_replay_answers_a_mistake_with_file_and_line(terminal: Terminal, lived: Lived, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    file.write_text('[[policy]]\nname = "orders"\nextends = "gentel"\n')

    refused = terminal.run("policy", "replay", str(file))

    assert refused.exit_code == 7
    assert "new.toml:3: policy orders, extends: there is no policy or base `gentel`" in refused.output
    nothing = terminal.run("policy", "replay", "-", "--since", "1m", stdin=BETTER)
    assert (nothing.exit_code, "Nothing to replay" in nothing.output) == (4, True)


def test_replay_needs_an_operator(api: ApiInstallation) -> None:
    body = {"toml": BETTER, "since": "2030-01-01T00:00:00Z"}

    assert api.call("POST", "/policies/replay", token=LOOK, json=body).status_code == 403
    assert api.call("POST", "/policies/replay", json=body).json()["code"] == "invalid_request"
    assert json.loads(api.call("POST", "/policies/replay", json={"toml": ""}).text)["status"] == 422


@pytest.fixture(scope="module")
def counted(api: ApiInstallation, lived: Lived) -> None:
    """The statistics of the history."""
    in_session(api.installation.dsn, count_statistics, SessionSettings.STATISTICS)


@pytest.mark.usefixtures("counted")
def test_advise_names_the_useless_retry_with_the_table_to_paste(terminal: Terminal, lived: Lived) -> None:
    found = terminal.json("advise", "--since", "7d")

    useless = [one for one in found["advice"] if one["kind"] == "useless_retries"]
    assert [(one["error_type"], one["retries"], one["succeeded"], one["messages"]) for one in useless] == [
        ("ValueError", 900, 0, 300)
    ]
    assert found["retries"] == lived.attempts
    text = terminal.run("advise", "--since", "7d").stdout
    assert "! orders: 0 of 900 retries after ValueError succeeded: make it final" in text
    assert '{ type = "ValueError", reason = "the card was declined", class = "final" },' in text


@pytest.mark.usefixtures("counted")
def test_advise_says_nothing_about_too_short_a_time(terminal: Terminal) -> None:
    result = terminal.run("advise", "--since", "1d")

    assert "nothing to advise" in result.stdout
    assert "so that one outage is no evidence" in result.output
    assert terminal.run("advise", "--since", "soon").exit_code == 2


@pytest.mark.usefixtures("counted")
def test_advise_applies_the_change_to_the_file_and_to_nothing_else(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "tarry.toml"
    file.write_text(f"# ours\n{POLICIES}")
    words = ("advise", "--apply", "--topology", str(tmp_path))

    asked = terminal.run(*words)
    assert (asked.exit_code, "confirm with --yes" in asked.output) == (2, True)
    assert file.read_text() == f"# ours\n{POLICIES}"
    applied = terminal.run(*words, "--yes")

    assert applied.exit_code == 0, applied.output
    rule = '{ type = "ValueError", reason = "the card was declined", class = "final" }'
    assert f"+    {rule}," in applied.output
    before, after = POLICIES.split("max_retries = 3\n", 1)
    assert file.read_text() == f"# ours\n{before}max_retries = 3\nerrors = [\n    {rule},\n]\n{after}"
    again = terminal.run(*words, "--yes")
    if terminal.remote:  # the service has its own files, which are as they were
        assert "the policy orders has this change already" in again.output
        assert file.read_text().count("ValueError") == 1
    else:
        assert "nothing to advise" in again.stdout


@pytest.mark.usefixtures("counted")
def test_advice_is_for_viewers_too(api: ApiInstallation) -> None:
    found = api.call("GET", "/advice", token=LOOK).json()

    assert [one["kind"] for one in found["advice"]] == ["useless_retries"]
    assert api.call("GET", "/advice", params={"since": "yesterday"}).status_code == 422

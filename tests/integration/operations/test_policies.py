"""Policies against the history, as operators see them: replay, with commands and over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.core.decide import Rulebook
from tarry.topology.load import load
from tests.integration.operations.terminal import Terminal
from tests.support.api import LOOK, TOKENS, ApiInstallation, api_installation
from tests.support.histories import Lived, events, live, store_rows, useless
from tests.support.services import Services
from tests.support.spaces import SharedBroker

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

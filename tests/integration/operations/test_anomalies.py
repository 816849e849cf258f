"""An anomaly as an operator and a program see it: status, metrics, an event, the action log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tarry.settings.tokens import Role, new_token
from tarry.store.database import SessionSettings
from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.cli import run_cli
from tests.support.events import WITH_EVENTS
from tests.support.histories import count_statistics, store_returns, store_usual_days
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.store import in_session
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

SCOPED, SCOPED_ENTRY = new_token("team", Role.LOOK, ["mails.*"])


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """With a week of ordinary days, and an outage of orders."""
    folder = tmp_path_factory.mktemp("anomalies")
    (folder / "topology").mkdir()
    (folder / "topology" / "tarry.toml").write_text(WITH_EVENTS, encoding="utf-8")
    tokens = TOKENS | {"API_TOKENS": f"{TOKENS['API_TOKENS']}, {SCOPED_ENTRY}"}
    with api_installation(broker, services, folder, **tokens, TARRY_LOOK_EVERY="1s") as made:
        wait_for(lambda: made.rows("select from event_position"), deadline=120, what="a position")
        dsn = made.installation.dsn
        store_usual_days(dsn)
        store_returns(dsn, datetime.now(UTC), good=10, bad=190)
        in_session(dsn, count_statistics, SessionSettings.STATISTICS)
        wait_for(lambda: made.get("/status")["anomalies"], deadline=120, what="an anomaly")
        yield made


def test_an_anomaly_is_in_status_and_metrics(api: ApiInstallation) -> None:
    (found,) = api.get("/status")["anomalies"]
    assert (found["kind"], found["name"], found["rate"], found["usual_rate"]) == ("queue", "orders", 0.95, 0.25)
    result = run_cli(["status"], api.installation.environment)
    assert "! orders: 95% of 200 returns failed again, usually 25%, most with TimeoutError, since " in result.stdout
    wait_for(lambda: api.router.metric("tarry_anomaly", kind="queue") == 0.95, deadline=120, what="the metric")
    assert api.call("GET", "/status", token=SCOPED).json()["anomalies"] == []


def test_an_anomaly_is_an_event_and_in_the_action_log(api: ApiInstallation) -> None:
    def events() -> list[dict[str, Any]]:
        done = run_cli(["events", "--json", "--state", "anomaly_began"], api.installation.environment)
        return [json.loads(line) for line in done.stdout.splitlines()]

    (event,) = wait_for(events, deadline=120, what="the event")

    assert (event["type"], event["subject"]) == ("tarry.anomaly.began", "orders")
    assert {"queue": "orders", "failure_rate": 0.95, "returned": 200}.items() <= event["data"].items()
    (logged,) = api.get("/actions", params={"kind": "anomaly_began"})["items"]
    assert logged["target"] == "orders"

"""Routers report to the store that they run; `tarry status` and the API list them (S4: the status of workers)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tarry import __version__
from tests.support.cli import run_cli
from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import Router
from tests.support.spaces import with_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

OFTEN = {"TARRY_LOOK_EVERY": "500ms"}


def status(installation: Installation, *options: str) -> str:
    result = run_cli(["status", *options], installation.environment | {"TARRY_API": "", "COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def listed(installation: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(status(installation, "--json"))["routers"]
    return found


def leaders(installation: Installation) -> list[int]:
    return [one["process"] for one in listed(installation) if one["leader"]]


def silence(installation: Installation, process: int) -> None:
    """As if its last report were a minute old."""
    with psycopg.connect(installation.dsn) as connection:
        sql = "update router set seen_at = seen_at - interval '1 minute' where process = %s"
        connection.execute(sql, [process])


def test_heartbeat_lists_routers_their_leader_and_those_that_went_silent(
    installation: Installation, start: Callable[..., Router]
) -> None:
    first = start(**OFTEN).wait_ready()
    wait_for(lambda: leaders(installation) == [first.process.pid], what="the first router to lead")
    others = [start(**OFTEN).wait_ready() for _ in range(2)]
    wait_for(lambda: len(listed(installation)) == 3, what="three routers")
    assert leaders(installation) == [first.process.pid]
    one = listed(installation)[0]
    assert (one["process"], one["version"], one["reports"]) == (first.process.pid, __version__, True)
    wait_for(lambda: [found["troubles"] for found in listed(installation)] == [[], [], []], what="them to be ready")
    assert one["id"].startswith(f"{one['host']}-{one['process']}-")
    _, answer = first.get("/api/v1/status")
    assert [found["id"] for found in json.loads(answer)["routers"]] == [found["id"] for found in listed(installation)]

    first.kill()
    silence(installation, first.process.pid)
    wait_for(lambda: leaders(installation) and leaders(installation) != [first.process.pid], what="another leader")
    assert not next(one for one in listed(installation) if one["process"] == first.process.pid)["reports"]
    assert f"{one['id']} stopped reporting 1m" in status(installation)

    for other in others:
        other.stop()
    assert [one["process"] for one in listed(installation)] == [first.process.pid]


def test_heartbeat_reports_rate_and_trouble_and_stops_nothing_without_postgres(
    installation: Installation, start: Callable[..., Router], proxy: Callable[[str], Proxy]
) -> None:
    wire = proxy(installation.dsn)
    router = start(DATABASE_URL=with_port(installation.dsn, wire.port)).wait_ready()
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1")
    wait_for(lambda: listed(installation)[0]["rate"] > 0, what="a rate")
    result = run_cli(["intake", "pause", "--reason", "deploy"], installation.environment)
    assert result.exit_code == 0, result.output
    wait_for(lambda: "deploy" in str(listed(installation)[0]["troubles"]), what="its note")
    assert "deploy" in status(installation)
    run_cli(["intake", "resume"], installation.environment)
    wait_for(lambda: listed(installation)[0]["troubles"] == [], what="no trouble")
    installation.wait_message(queue)
    wire.refuse()
    wire.cut()
    installation.request(queue, "m2")
    assert installation.wait_message(queue)[0].message_id == "m2"
    silence(installation, router.process.pid)
    assert not listed(installation)[0]["reports"]
    wire.heal()
    wait_for(lambda: listed(installation)[0]["reports"], what="it to report again")

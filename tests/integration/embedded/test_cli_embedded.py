from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pika
import psycopg
import pytest

from tarry import embedded
from tarry.embedded.guardian import descendants
from tarry.embedded.sources import Availability
from tarry.errors import EmbeddedError
from tests.support.cli import run_cli
from tests.support.processes import alive
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.spaces import SharedBroker

UP = [sys.executable, "-c", "from tarry.cli.embedded import app; app()", "up", "--json"]


def test_up_runs_until_interrupted_and_ends_in_order(broker: SharedBroker) -> None:
    series = ".".join(broker.version.split(".")[:2])
    environment = os.environ | {"RABBITMQ_URL": broker.amqp_url, "PGSSLMODE": "require"}
    with subprocess.Popen([*UP, "--series", series], stdout=subprocess.PIPE, text=True, env=environment) as command:
        assert command.stdout is not None
        ready = json.loads(command.stdout.readline())
        pids = descendants(command.pid)
        pika.BlockingConnection(pika.URLParameters(ready["rabbitmq_url"])).close()
        psycopg.connect(ready["database_url"]).close()
        assert ready["rabbitmq_version"] == broker.version
        assert ready["rabbitmq_url"] != broker.amqp_url
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0
    wait_for(lambda: not any(map(alive, pids)), what=f"all of {pids} to end")


class StubWay:
    name = "a stub"
    version = "4.3.6"
    source = "nowhere"

    def __init__(self, *, usable: bool) -> None:
        self.usable = usable

    def look(self, series: str | None) -> Availability:
        return Availability(usable=self.usable, sentence=f"series {series}")

    def take(self, *_: object) -> StubWay:
        return self


@pytest.mark.parametrize(("usable", "mark", "code"), [(True, "yes", 0), (False, "no ", 1)])
def test_doctor_lists_the_ways_and_fails_without_any(
    monkeypatch: pytest.MonkeyPatch, *, usable: bool, mark: str, code: int
) -> None:
    monkeypatch.setattr(embedded, "ways", lambda **_: [StubWay(usable=usable)])
    result = run_cli(["embedded", "doctor", "--series", "4.3"])
    assert result.output.splitlines()[0] == f"{mark}  a stub: series 4.3"
    assert result.output.splitlines()[1].startswith("yes  PostgreSQL: ")
    assert result.exit_code == code


def test_doctor_fails_without_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise EmbeddedError("No PostgreSQL to run")

    monkeypatch.setattr(embedded, "ways", lambda **_: [StubWay(usable=True)])
    monkeypatch.setattr("tarry.cli.embedded.find_install", fail)
    result = run_cli(["embedded", "doctor"])
    assert (result.output.splitlines()[1], result.exit_code) == ("no   PostgreSQL: No PostgreSQL to run", 1)


def test_install_says_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "ways", lambda **_: [StubWay(usable=True)])
    result = run_cli(["embedded", "install"])
    assert "RabbitMQ 4.3.6 is available: nowhere." in result.output


def test_install_and_doctor_answer_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "ways", lambda **_: [StubWay(usable=True)])
    found = json.loads(run_cli(["embedded", "doctor", "--json"]).stdout)
    assert found["brokers"] == [{"name": "a stub", "usable": True, "sentence": "series None"}]
    assert found["postgres"]["usable"] is True
    assert json.loads(run_cli(["embedded", "install", "--json"]).stdout) == {"version": "4.3.6", "source": "nowhere"}

"""S4, the screenshot API: an attempt that hangs is listed as stuck, recovered once, counted, and never a success."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import psycopg
import pytest
from typer.testing import CliRunner

from tarry.cli.main import app
from tarry.client import Attempt, Options
from tests.acceptance.shipped import ShippedService, serving_a_file
from tests.integration.client.adapters import AioThreads, Consumer, Threads
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

OFTEN = {"TARRY_LOOK_EVERY": "1s", "TARRY_RECOVER_STUCK_EVERY": "1s", "TARRY_PRESUME_AFTER": "1s"}
LISTED, RECOVERED = "31 minutes", "2 hours"
"""After 30 minutes it is stuck, and after 33 the broker would have delivered it again by itself."""


@pytest.fixture(scope="module")
def service(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShippedService]:
    with serving_a_file(broker, services, tmp_path_factory.mktemp("place"), 0.02, OFTEN) as made:
        yield made


class Handler:
    """Fails at first, hangs in the first retry until it is let go, and succeeds after that."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.rounds: list[int] = []

    def __call__(self, attempt: Attempt, _body: bytes) -> None:
        self.rounds.append(attempt.round)
        if attempt.round == 0:
            raise ValueError("not yet")
        if attempt.round == 1:
            assert self.go.wait(120)


@contextmanager
def hung(service: ShippedService, adapter: type[Consumer], queue: str) -> Iterator[tuple[Handler, str]]:
    """A consumer that hangs in the first retry of its message, and the id of that retry."""
    service.queue(queue)
    service.work(queue, f"{queue}-1")
    handler = Handler()
    with adapter(service.installation.amqp_url, queue, handler, Options(report_seconds=0.1, consumer="worker-7")):
        try:
            wait_for(lambda: started(service, queue), deadline=60, what="the start to be stored")
            yield handler, one(service, "select id::text from retry where queue = %s", queue)
        finally:
            handler.go.set()


def one(service: ShippedService, query: str, *values: object) -> str:
    with psycopg.connect(service.installation.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode(), values).fetchone()
    return str(row[0]) if row else ""


def started(service: ShippedService, queue: str) -> bool:
    return bool(one(service, "select 1 from attempt_start join retry on id = retry_id where queue = %s", queue))


def age(service: ShippedService, retry_id: str, by: str) -> None:
    """As if the consumer had hung for so long."""
    text = "update attempt_start set seen_at = seen_at - %s::interval where retry_id = %s returning 1"
    assert one(service, text, by, retry_id) == "1"


def state(service: ShippedService, retry_id: str) -> str:
    return one(service, "select state || ' ' || round from retry where id = %s", retry_id)


def steps(service: ShippedService, retry_id: str) -> list[tuple[int, str]]:
    (timeline,) = json.loads(service.tarry("history", retry_id, "--json"))
    return [(step["round"], step["state"]) for step in timeline["steps"]]


def listed(service: ShippedService, queue: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(service.tarry("stuck", "list", "--json", "--queue", queue))
    with urlopen(f"http://127.0.0.1:{service.router.port}/api/v1/stuck?queue={queue}", timeout=30) as answer:
        assert [one["retry_id"] for one in json.loads(answer.read())] == [one["retry_id"] for one in found]
    return found


def test_s4_a_hung_attempt_is_listed_recovered_once_and_counted(service: ShippedService) -> None:
    before = service.metric("tarry_stuck_recovered_total")
    with hung(service, Threads, "shots") as (handler, retry_id):
        assert_not_presumed(service, retry_id)
        age(service, retry_id, LISTED)
        (found,) = listed(service, "shots")
        assert (found["retry_id"], found["queue"], found["round"]) == (retry_id, "shots", 1)
        assert (found["consumer"], found["retry_count"], found["kept"]) == ("worker-7", 1, True)
        assert "worker-7" in service.tarry("stuck")
        wait_for(lambda: service.metric("tarry_stuck_attempts") == 1, deadline=60, what="the gauge")
        early = CliRunner().invoke(app, ["stuck", "recover", retry_id], env=service.environment)
        assert (early.exit_code, state(service, retry_id)) == (5, "returned 1")

        age(service, retry_id, RECOVERED)
        wait_for(lambda: state(service, retry_id) == "succeeded 2", deadline=60, what="the second round to succeed")
        assert handler.rounds == [0, 1, 2]
        wait_for(lambda: service.metric("tarry_stuck_recovered_total") == before + 1, deadline=60, what="the counter")
        wait_for(lambda: service.metric("tarry_stuck_attempts") == 0, deadline=60, what="the gauge to fall")
        assert (1, "stuck") in steps(service, retry_id)
        assert (1, "succeeded") not in steps(service, retry_id)
    (action,) = json.loads(service.tarry("actions", "--kind", "recover_stuck", "--target", retry_id, "--json"))
    assert action["detail"]["possible_second_delivery"] is True
    assert (action["outcome"]["sent_to"], action["outcome"]["confirmed"]) == ("queue", True)
    assert [line["retry_id"] for line in service.actions("stuck attempt recovered")].count(retry_id) == 1
    service.tarry("audit", "verify")


def test_s4_an_outcome_that_comes_after_all_ends_the_stuck_state(service: ShippedService) -> None:
    with hung(service, AioThreads, "late.shots") as (handler, retry_id):
        age(service, retry_id, LISTED)
        assert len(listed(service, "late.*")) == 1
        handler.go.set()
        wait_for(lambda: state(service, retry_id) == "succeeded 1", deadline=60, what="the late success")
        assert listed(service, "late.*") == []
        gone = CliRunner().invoke(app, ["stuck", "recover", retry_id, "--now"], env=service.environment)
        assert gone.exit_code == 6, gone.output
    assert (1, "stuck") not in steps(service, retry_id)


def assert_not_presumed(service: ShippedService, retry_id: str) -> None:
    """Another retry that returned later, of a consumer that reports nothing, is presumed to have succeeded by now."""
    silent = service.queue("silent.shots")
    service.work(silent, "silent-1")
    service.reject(service.arrival(silent))
    service.ack(service.arrival(silent))
    presumed = "select state from retry where queue = 'silent.shots'"
    wait_for(lambda: one(service, presumed) == "succeeded", deadline=60, what="the other success to be presumed")
    assert state(service, retry_id) == "returned 1"

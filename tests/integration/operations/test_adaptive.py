"""Decisions from history as operators see them: the list, retrying an error again, explain, health, and what happens
without statistics or without Postgres.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from tarry.analytics.rollups import count_new_steps
from tarry.core.fingerprint import fingerprint
from tarry.settings.tokens import Role, new_token
from tarry.store.database import SessionSettings
from tests.integration.operations.terminal import Terminal
from tests.integration.web.test_dashboard_access import Client
from tests.support.api import OPERATE, TOKENS, ApiInstallation
from tests.support.cli import run_cli
from tests.support.hurry import HURRIED
from tests.support.installation import Installation, shared_installation
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
name = "learning"
match = { queue = "learn.*" }
schedule = ["5m"]
max_retries = 3
adaptive = { try = "0.001%" }

[[policy]]
name = "plain"
schedule = ["5m"]
max_retries = 3
"""
SCOPED, SCOPED_ENTRY = new_token("team", Role.OPERATE, ["learn.mine*"])
ENTRIES = {"API_TOKENS": f"{TOKENS['API_TOKENS']}, {SCOPED_ENTRY}", "API_RATE": "0"}
SETTINGS = {"TARRY_LOOK_EVERY": "off"} | HURRIED
REASON = "given up: 0 of 300 retries of this error succeeded (below 1%)"
OFFLINE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing"}


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """One service for this file, with statistics."""
    folder = tmp_path_factory.mktemp("adaptive")
    write_policies(folder / "topology")
    with shared_installation(broker, services, folder / "topology") as installation, routers(installation) as start:
        count(installation)
        with closing(ApiInstallation(installation, start(**ENTRIES, **SETTINGS).wait_ready())) as made:
            yield made


def write_policies(folder: Path) -> None:
    folder.mkdir()
    (folder / "tarry.toml").write_text(POLICIES)


def count(installation: Installation) -> None:
    in_session(installation.dsn, count_new_steps, SessionSettings.STATISTICS)


def seed(
    installation: Installation, queue: str, error_type: str, *, failed: int, succeeded: int = 0, hours: int = 0
) -> str:
    """So many outcomes of an error, so many hours ago. Returns its fingerprint."""
    mark, starts = fingerprint(error_type, None) or "", datetime.now(UTC) - timedelta(hours=hours)
    add = (
        "insert into statistic (span, starts, kind, queue, policy, value, attempt, returned, succeeded, failed) values "
        "(%s, date_trunc(%s, %s::timestamptz, 'UTC'), 'error', %s, 'learning', %s, 1, %s, %s, %s) "
        "on conflict (span, starts, kind, queue, policy, value, other, attempt) do update "
        "set returned = statistic.returned + excluded.returned, failed = statistic.failed + excluded.failed"
    )
    with psycopg.connect(installation.dsn) as connection:
        for span in ("hour", "day"):
            connection.execute(add, (span, span, starts, queue, mark, failed + succeeded, succeeded, failed))
        connection.execute(
            "insert into statistic_error (queue, fingerprint, error_type, example) "
            "values (%s, %s, %s, 'no such order') on conflict do nothing",
            (queue, mark, error_type),
        )
    return mark


def give_up(installation: Installation, queue: str, error_type: str = "UnknownOrder") -> str:
    """Makes an error that has failed for two days, and has it judged. Neither half is enough to judge by, which the
    service may do at any time.
    """
    seed(installation, queue, error_type, failed=190, hours=48)
    mark = seed(installation, queue, error_type, failed=110)
    count(installation)
    wait_for(lambda: is_given_up(installation, queue), what="the error to be given up")
    return mark


def is_given_up(installation: Installation, queue: str) -> bool:
    return bool(installation.number("select count(*) from given_up_error where queue = %s", queue))


def test_adaptive_lists_what_is_given_up_and_retries_it_again(terminal: Terminal) -> None:
    installation, queue = terminal.api.installation, f"learn.cli-{terminal.remote}"
    mark = give_up(installation, queue)
    (found,) = [one for one in terminal.json("adaptive", "list")["given_up"] if one["queue"] == queue]
    assert (found["policy"], found["error"], found["reason"]) == ("learning", mark, REASON)
    assert (found["error_type"], found["succeeded"], found["failed"]) == ("UnknownOrder", 0, 300)
    shown = terminal.run("adaptive").stdout
    assert "0 of 300" in shown
    assert f"{mark}: UnknownOrder: no such order" in shown

    answer = terminal.run("adaptive", "retry", queue, mark[:6], "--reason", "fixed in 4.2").output
    assert f"{queue}: error {mark}: retried, and judged by what happens from now on" in answer
    assert f"tarry review redrive --queue {queue} --fingerprint {mark}" in answer
    count(installation)
    (choice,) = terminal.json("adaptive", "list", "--queue", queue)["choices"]
    assert (choice["error"], choice["always"], choice["reason"]) == (mark, False, "fixed in 4.2")
    assert not is_given_up(installation, queue)
    actions = terminal.json("actions", "--target", queue)
    assert [(one["kind"], one["detail"].get("reason") or one["detail"].get("why")) for one in actions] == [
        ("retry_error", "fixed in 4.2"),
        ("error_given_up", REASON),
    ]

    assert terminal.run("adaptive", "auto", queue, mark).exit_code == 0
    wait_for(lambda: is_given_up(installation, queue), what="the error to be given up again")
    always = terminal.json("adaptive", "retry", queue, mark, "--always")
    assert (always["choice"]["always"], always["retried"], always["without_effect"]) == (True, ["learning"], False)
    count(installation)
    assert terminal.json("adaptive", "list", "--queue", queue)["given_up"] == []


def test_adaptive_refuses_an_error_that_the_queue_does_not_have(terminal: Terminal) -> None:
    queue = f"learn.wrong-{terminal.remote}"
    mark = seed(terminal.api.installation, queue, "UnknownOrder", failed=3)
    for words in (["retry", queue, "0123456789abcdef"], ["retry", "learn.none", mark], ["auto", queue, mark]):
        refused = terminal.run("adaptive", *words)
        assert refused.exit_code == 4, refused.output
        assert "tarry adaptive" in refused.output
    elsewhere = f"other-{terminal.remote}"
    seed(terminal.api.installation, elsewhere, "UnknownOrder", failed=3)
    answer = terminal.run("adaptive", "retry", elsewhere, mark).output
    assert "no policy of the queue has `adaptive`: this has no effect now" in answer


def test_adaptive_sends_messages_to_review_and_explain_says_why(api: ApiInstallation) -> None:
    queue = api.installation.declare("learn.explained")
    words = ["explain", "--queue", queue, "--error-type", "UnknownOrder", "--api", api.url, "--token", str(api.token)]
    seed(api.installation, queue, "UnknownOrder", failed=10)
    fresh = run_cli(words, api.installation.environment).stdout
    assert "not given up: 10 of the 200 outcomes are known that it takes" in " ".join(fresh.split())
    mark = give_up(api.installation, queue)

    def reviewed() -> bool:
        """Routers read what is given up at intervals."""
        number = api.installation.number("select count(*) from retry where queue = %s", queue)
        api.installation.request(queue, f"explained-{number}", error_type="UnknownOrder")
        retry = api.installation.retry_of(f"explained-{number}")
        wait_for(lambda: api.get(f"/retries/{retry}")["state"] in ("scheduled", "in_review"), what="a decision")
        return bool(api.get(f"/retries/{retry}")["state"] == "in_review")

    wait_for(reviewed, what="the router to know")
    sql = "select distinct review_reason from retry where state = 'in_review' and queue = %s"
    ((reason,),) = api.installation.rows(sql, queue)
    assert reason == "given up: 0 of 310 retries of this error succeeded (below 1%)"
    other = api.schedule(queue, "another-error", error_type="OrderLocked")
    assert api.get(f"/retries/{other}")["state"] == "scheduled"
    shown = " ".join(run_cli(words, api.installation.environment).stdout.split())
    assert f"outcome review, in manual-review.pending: {reason}" in shown
    assert "0.001% of the messages are still tried" in shown
    here = run_cli(words[:-4], api.installation.environment).stdout
    assert "with --api the service is asked" in here
    schedule = run_cli(["explain", "--schedule", "--policy", "learning"], api.installation.environment).stdout
    assert "An error is given up below 1% of at least 200 retries in 7d, for 1d; 0.001% are still tried." in " ".join(
        schedule.split()
    )
    page = api.get("/adaptive", params={"queue": queue})
    assert [one["error"] for one in page["given_up"]] == [mark]
    assert page["not_applied"] is None


def test_adaptive_shows_a_limited_token_its_own_queues_only(api: ApiInstallation) -> None:
    mark = give_up(api.installation, "learn.mine")
    give_up(api.installation, "learn.theirs")
    found = api.get("/adaptive", token=SCOPED)
    assert {one["queue"] for one in found["given_up"]} == {"learn.mine"}
    for name, status in (("learn.theirs", 404), ("learn.*", 403), ("learn.mine", 200)):
        answer = api.call("POST", f"/queues/{name}/adaptive/retry", token=SCOPED, json={"error": mark})
        assert answer.status_code == status, answer.text


def test_adaptive_has_a_place_on_the_page_of_the_destination(api: ApiInstallation) -> None:
    queue = api.installation.declare("learn.page")
    api.schedule(queue, "on-the-page", error_type="OrderLocked")
    mark = give_up(api.installation, queue, "<b>Unknown</b>Order")
    browser = Client(api, OPERATE)
    page = browser.get(f"/destinations/one?name={queue}").text
    assert "Errors that are given up" in page
    assert "&lt;b&gt;Unknown&lt;/b&gt;Order</strong>: no such order" in page
    assert "0 of 300 retries succeeded" in page
    done = browser.post("/destinations/error", name=queue, error=mark, verb="always", reason="fixed")
    assert done.status_code == 303, done.text
    assert "Errors that are given up" not in browser.get(f"/destinations/one?name={queue}").text
    (choice,) = api.get("/adaptive", params={"queue": queue})["choices"]
    assert (choice["always"], choice["reason"]) == (True, "fixed")
    browser.http.close()


def test_adaptive_is_not_applied_without_recent_statistics_and_says_so(
    vhost: Vhost, database: Database, tmp_path: Path
) -> None:
    installation = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "t", POLICIES).apply()
    installation.declare("learn.stale")
    count(installation)
    with routers(installation) as start:
        router = start(**SETTINGS).wait_ready()
        give_up(installation, "learn.stale")
        with psycopg.connect(installation.dsn) as connection:
            connection.execute("update statistic_position set counted_until = counted_until - interval '20 minutes'")
        router.wait_logged("decisions from history are not applied")
        _, reasons = router.ready()
        assert any(one.startswith("decisions from history are not applied, retries of learning") for one in reasons)
        installation.request("learn.stale", "m", error_type="UnknownOrder")
        wait_for(
            lambda: installation.states("m")[0:1] and installation.states("m")[0][1] == "scheduled", what="a retry"
        )
        listed = json.loads(run_cli(["adaptive", "list", "--json"], installation.environment).stdout)
        assert listed["not_applied"].endswith("are not counted yet")
        count(installation)
        router.wait_logged("decisions from history are applied again")
        wait_for(lambda: router.ready() == (200, []), what="health to be good again")
    installation.close()


def test_adaptive_without_postgres_retries_and_health_says_so(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    installation = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "t", POLICIES).apply()
    installation.declare("learn.away")
    with routers(installation) as start:
        router = start(**OFFLINE)
        installation.request("learn.away", "m", error_type="UnknownOrder")
        wait_for(lambda: installation.depth("retry.delay.5m") == 1, deadline=60, what="the message to wait")
        _, reasons = router.ready()
        assert any("Postgres did not say which errors are given up" in one for one in reasons)
    installation.close()

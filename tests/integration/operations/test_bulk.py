"""Jobs on all retries that match: frozen and counted first, in growing batches, each failure listed."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.integration.operations.review.reviewing import send_to_review
from tests.integration.operations.terminal import Terminal
from tests.support.api import ApiInstallation
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series


def _queue(terminal: Terminal, name: str) -> str:
    return f"slow.{name}.{'api' if terminal.remote else 'direct'}"


def _waiting(api: ApiInstallation, queue: str, count: int) -> list[str]:
    api.installation.declare(queue)
    for number in range(count):
        api.installation.request(queue, f"{queue}-{number}", owner="acme")
    found: list[str] = []

    def all_wait() -> bool:
        items = api.get("/retries", params={"queue": queue, "state": "scheduled", "limit": 200})["items"]
        found[:] = [one["retry_id"] for one in items]
        return len(found) == count

    wait_for(all_wait, what=f"{count} retries to wait in {queue}")
    return found


def _states(api: ApiInstallation, queue: str) -> list[tuple[str, int]]:
    sql = f"select state, count(*) from retry where queue = '{queue}' group by 1 order by 1"  # noqa: S608
    return [(state, number) for state, number in api.rows(sql)]


def _prepared(api: ApiInstallation, **spec: Any) -> str:
    made = api.call("POST", "/review/jobs", json={"prepared": True, "reason": "because"} | spec)
    assert made.status_code == 201, made.text
    assert made.json()["state"] == "prepared"
    return str(made.json()["id"])


def _done(api: ApiInstallation, job: str) -> Any:
    wait_for(lambda: api.get(f"/review/jobs/{job}")["state"] == "done", what="the job to be done")
    return api.get(f"/review/jobs/{job}")


def test_all_that_match_are_cancelled_once_that_is_confirmed(terminal: Terminal) -> None:
    queue, api = _queue(terminal, "cancelled"), terminal.api
    _waiting(api, queue, 12)
    words = ("retries", "cancel", "--queue", queue, "--owner", "acme", "--reason", "not needed", "--watch", "1s")
    asked = terminal.run(*words)
    assert (asked.exit_code, "This would cancel 12 messages: add --yes" in asked.output) == (2, True)
    assert _states(api, queue) == [("scheduled", 12)]
    job = terminal.json(*words, "--yes")
    assert (job["state"], job["done"], job["failed"], job["options"]) == ("done", 12, 0, {"watch_ms": 1000})
    assert _states(api, queue) == [("cancelled", 12)]
    reasons = {one[0] for one in api.rows("select distinct reason from transition where state = 'cancelled'")}
    assert "not needed" in reasons
    assert terminal.run(*words, "--yes").exit_code == 4
    assert terminal.run("retries", "cancel", "--reason", "x").exit_code == 2
    listed = terminal.json("retries", "list", "--queue", queue, "--state", "cancelled")
    assert (len(listed["items"]), listed["cursor"]) == (12, None)


def test_a_prepared_job_acts_on_what_it_was_shown_with(api: ApiInstallation) -> None:
    """What comes later is not in it, and what has changed meanwhile is listed."""
    queue = "slow.prepared"
    ids = _waiting(api, queue, 3)
    job = _prepared(api, kind="retry_now", retries={"queue": queue})
    api.schedule(queue, "later")
    assert api.call("POST", f"/retries/{ids[0]}/cancel").status_code == 200
    assert _states(api, queue) == [("cancelled", 1), ("scheduled", 3)]
    api.call("POST", f"/review/jobs/{job}/resume")
    done = _done(api, job)
    assert (done["total"], done["done"], done["skipped"]) == (3, 2, 1)
    [problem] = done["problems"]
    assert problem["retry_id"] == ids[0]
    assert problem["problem"].startswith("does not wait any more: cancelled")
    wait_for(lambda: dict(_states(api, queue)).get("returned") == 2, what="two to return")
    assert dict(_states(api, queue))["scheduled"] == 1
    api.call("POST", f"/retries/{api.installation.retry_of('later')}/cancel")


def test_an_interrupted_job_does_not_divert_twice(api: ApiInstallation) -> None:
    queue = "slow.interrupted"
    _waiting(api, queue, 2)
    job = _prepared(api, kind="cancel", retries={"queue": queue})
    api.call("POST", f"/review/jobs/{job}/resume")
    _done(api, job)
    with psycopg.connect(api.installation.dsn) as sql:
        sql.execute("update review_item set state = 'sending' where job_id = %s", [job])
        sql.execute("update review_job set finished_at = null where id = %s", [job])
    assert _done(api, job)["done"] == 2
    assert api.rows(
        f"select count(*) from transition join retry on retry.id = retry_id where queue = '{queue}'"  # noqa: S608
        " and transition.state = 'cancelled'"
    ) == [(2,)]


def test_a_job_stops_itself_when_its_first_message_fails_again(api: ApiInstallation) -> None:
    queue = "slow.failing"
    api.installation.declare(queue)
    send_to_review(api.installation, queue, [f"failing-{number}" for number in range(5)], error_type="Down")
    job = _prepared(api, kind="redrive", which={"queue": queue}, watch="3s")
    api.call("POST", f"/review/jobs/{job}/resume")
    wait_for(lambda: api.get(f"/review/jobs/{job}")["done"] == 1, what="the first message")
    with psycopg.connect(api.installation.dsn) as sql:  # as a router records that it failed again
        sql.execute(
            "update retry set round = round + 1, state = 'scheduled' where queue = %s and state <> 'in_review'", [queue]
        )
    wait_for(lambda: api.get(f"/review/jobs/{job}")["state"] == "stopped", what="the job to stop itself")
    found = api.get(f"/review/jobs/{job}")
    assert (found["left"], found["problem"]) == (
        4,
        "stopped by itself: 1 of 1 failed within 3s. Resumed, it begins with one",
    )
    assert api.call("POST", f"/review/jobs/{job}/abandon").status_code == 200


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kind": "cancel", "which": {"queue": "*"}, "reason": "x"}, "does not wait"),
        ({"kind": "cancel", "retries": {"queue": "a"}}, "needs a reason"),
        ({"kind": "redrive", "which": {"queue": "*"}, "watch": "10s", "delay_ms": 1000}, "without --delay"),
        ({"kind": "redrive", "which": {"queue": "*"}, "watch": "2h"}, "1 second to 1 hour"),
        ({"kind": "redrive", "which": {"queue": "*"}, "retries": {"queue": "a"}}, "only one of"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(api: ApiInstallation, spec: dict[str, Any], words: str) -> None:
    before = api.rows("select count(*) from review_job")
    answer = api.call("POST", "/review/jobs", json=spec)
    assert (answer.status_code, words in json.dumps(answer.json())) == (422, True), answer.text
    assert api.rows("select count(*) from review_job") == before


def test_a_job_that_is_not_started_in_time_frees_its_messages(api: ApiInstallation) -> None:
    queue = "slow.forgotten"
    _waiting(api, queue, 1)
    forgotten = _prepared(api, kind="cancel", retries={"queue": queue})
    spec = {"kind": "cancel", "retries": {"queue": queue}, "reason": "x"}
    assert api.call("POST", "/review/jobs", json=spec).status_code == 409
    with psycopg.connect(api.installation.dsn) as sql:
        sql.execute("update review_job set created_at = created_at - interval '2 hours' where id = %s", [forgotten])
    job = api.call("POST", "/review/jobs", json=spec).json()["id"]
    assert _done(api, job)["done"] == 1
    assert api.get(f"/review/jobs/{forgotten}")["skipped"] == 1

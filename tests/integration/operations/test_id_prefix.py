"""The beginning of an id is enough wherever an id is asked for, if only one id begins so."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest

from tarry.store.database import query
from tests.integration.operations.review.reviewing import in_review, send_to_review
from tests.integration.operations.terminal import Terminal
from tests.support.api import LOOK, ApiInstallation

pytestmark = pytest.mark.one_series


def twin(api: ApiInstallation, retry: str, beginning: int = 9) -> str:
    """Another retry in the same state whose id begins like this one's."""
    other = retry[:beginning] + str(uuid.uuid4())[beginning:]
    with psycopg.connect(api.installation.dsn) as connection:
        connection.execute(
            "insert into retry select (jsonb_populate_record(retry, jsonb_build_object('id', %s::text))).*"
            " from retry where id = %s",
            [other, retry],
        )
    return other


def waiting(terminal: Terminal, name: str) -> str:
    return terminal.api.schedule("slow.ids", f"{name}-{terminal.remote}")


def reviewed(terminal: Terminal, name: str, **headers: Any) -> tuple[str, str]:
    """A retry in review, with its fingerprint."""
    message = f"{name}-{terminal.remote}"
    send_to_review(terminal.api.installation, terminal.api.installation.declare("orders"), [message], **headers)
    rows = terminal.api.rows(f"select id::text, fingerprint from retry where message_id = '{message}'")  # noqa: S608 - our own
    return str(rows[0][0]), str(rows[0][1])


def test_cancel_takes_the_beginning_and_records_the_whole_id(terminal: Terminal) -> None:
    retry = waiting(terminal, "cancel")
    [answer] = terminal.json("cancel", f"{retry[:9].upper()}…")
    assert (answer["answer"], answer["retry_id"]) == ("cancelled", retry)
    for target in (retry, retry[:9]):
        [action] = terminal.json("actions", "--target", target)
        assert (action["kind"], action["target"]) == ("cancel", retry)


def test_retry_now_takes_the_beginning(terminal: Terminal) -> None:
    retry = waiting(terminal, "now")
    [answer] = terminal.json("retry-now", retry.replace("-", "")[:10])
    assert (answer["answer"], answer["retry_id"]) == ("retried", retry)


def test_an_ambiguous_beginning_is_refused_with_the_candidates(terminal: Terminal) -> None:
    retry = waiting(terminal, "twins")
    other = twin(terminal.api, retry)
    try:
        for command in (("cancel",), ("retry-now",), ("review", "show"), ("review", "redrive")):
            refused = terminal.run(*command, retry[:8])
            assert refused.exit_code == 5, refused.output
            assert f"{retry[:8]!r} is the beginning of 2 ids" in refused.stderr
            assert retry in refused.stderr
            assert other in refused.stderr
        assert terminal.api.get(f"/retries/{retry}")["state"] == "scheduled"
        answer = terminal.api.call("GET", f"/retries/{retry[:8]}")
        assert (answer.status_code, other in answer.json()["detail"]) == (409, True)
    finally:
        with psycopg.connect(terminal.api.installation.dsn) as connection:
            connection.execute("delete from retry where id = %s", [other])


def test_a_message_id_goes_before_the_beginning_of_a_retry_id(terminal: Terminal) -> None:
    victim = waiting(terminal, "victim")
    meant = terminal.api.schedule("slow.ids", victim[:8])
    [answer] = terminal.json("cancel", victim[:8])
    assert answer["retry_id"] == meant
    assert terminal.api.get(f"/retries/{victim}")["state"] == "scheduled"


def test_a_short_beginning_is_not_found_and_the_rule_is_told(terminal: Terminal) -> None:
    for text in ("abc", "4711"):
        refused = terminal.run("cancel", text)
        assert refused.exit_code == 4
        assert "The beginning of an id needs 4 characters, or 8 if all of them are digits." in refused.stderr


def test_history_takes_the_beginning_and_refuses_an_ambiguous_one(api: ApiInstallation) -> None:
    terminal = Terminal(api, remote=False)
    retry = waiting(terminal, "history")
    assert [one["retry_id"] for one in terminal.json("history", retry[:9])] == [retry]
    other = twin(api, retry)
    refused = terminal.run("history", retry[:8])
    assert (refused.exit_code, retry in refused.stderr, other in refused.stderr) == (5, True, True)
    api.rows(f"delete from retry where id = '{other}' returning id")  # noqa: S608 - our own


def test_one_retry_and_its_payload_are_shown_by_the_beginning(api: ApiInstallation) -> None:
    retry = api.schedule("slow.ids", "shown")
    assert api.get(f"/retries/{retry[:9]}", token=LOOK)["retry_id"] == retry
    assert api.get(f"/retries/{retry[:9]}/payload")["headers"]["tarry-id"] == retry
    for path in ("/retries/abc", "/retries/ffffffff0000", "/retries/ORDER-4711", "/retries/ORDER-4711/payload"):
        answer = api.call("GET", path)
        assert (answer.status_code, "No retry has the id" in answer.json()["detail"]) == (404, True)


def test_review_takes_the_beginning_of_an_id(terminal: Terminal) -> None:
    retry, _ = reviewed(terminal, "shown")
    assert terminal.json("review", "show", retry[:9])["retry_id"] == retry
    assert terminal.json("review", "discard", retry[:9], "--reason", "test")["done"] == 1


def test_review_jobs_over_http_take_the_beginning_of_ids(api: ApiInstallation) -> None:
    retry, _ = reviewed(Terminal(api, remote=True), "http")
    wanted = {"kind": "discard", "which": {"ids": [retry[:9]]}, "reason": "test"}
    job = api.call("POST", "/review/jobs", json=wanted).json()
    assert (job["total"], job["filter"]["ids"]) == (1, [retry])
    assert api.get(f"/review/jobs/{job['id'][:8]}")["id"] == job["id"]
    wanted["which"] = {"ids": ["nobody"]}
    assert api.call("POST", "/review/jobs", json=wanted).status_code == 404
    assert api.call("GET", "/review/jobs/abcdef01").status_code == 404


def test_review_takes_the_beginning_of_a_fingerprint(terminal: Terminal) -> None:
    kind = f"Kind{'Api' if terminal.remote else 'Direct'}"
    retry, mark = reviewed(terminal, "print", error_type=kind)
    listed = terminal.json("review", "list", "--fingerprint", f"{mark[:6]}…")["items"]
    assert [one["retry_id"] for one in listed] == [retry]
    found = terminal.api.get("/retries", params={"fingerprint": mark[:6]})["items"]
    assert [one["retry_id"] for one in found] == [retry]
    job = terminal.json("review", "discard", "--fingerprint", mark[:6], "--reason", "test", "--yes")
    assert (job["done"], job["filter"]["fingerprint"]) == (1, mark)


def test_an_ambiguous_fingerprint_is_refused_and_nothing_is_sent(terminal: Terminal) -> None:
    retry, mark = reviewed(terminal, "prints", error_type=f"Twin{terminal.remote}")
    similar = mark[:6] + ("0" if mark[6] != "0" else "1") + mark[7:]
    before = in_review(terminal.api.installation)
    with psycopg.connect(terminal.api.installation.dsn, autocommit=True) as connection:
        other = twin(terminal.api, retry)
        connection.execute("update retry set fingerprint = %s where id = %s", [similar, other])
        for command in (("list",), ("groups",), ("redrive", "--yes"), ("discard", "--reason", "test", "--yes")):
            refused = terminal.run("review", *command, "--fingerprint", mark[:6])
            assert (refused.exit_code, mark in refused.stderr, similar in refused.stderr) == (5, True, True)
        assert in_review(terminal.api.installation) == before + 1
        connection.execute("delete from retry where id = any(%s::uuid[])", [[retry, other]])


def test_a_job_is_found_by_its_beginning_and_refused_if_ambiguous(terminal: Terminal) -> None:
    retry, _ = reviewed(terminal, "job")
    job = terminal.json("review", "discard", retry, "--reason", "test")["id"]
    other = job[:9] + str(uuid.uuid4())[9:]
    assert terminal.json("review", "job", job[:9])["id"] == job
    with psycopg.connect(terminal.api.installation.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into review_job select (jsonb_populate_record(review_job, jsonb_build_object('id', %s::text))).*"
            " from review_job where id = %s",
            [other, job],
        )
        refused = terminal.run("review", "job", job[:8], "--stop")
        assert (refused.exit_code, job in refused.stderr, other in refused.stderr) == (5, True, True)
        connection.execute("delete from review_job where id = %s", [other])


LOW, HIGH = "5f0c0000-0000-0000-0000-000000000000", "5f0cffff-ffff-ffff-ffff-ffffffffffff"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("retries_beginning", {"called": "5f0c", "low": LOW, "high": HIGH, "limit": 11}),
        ("retries_called", {"called": "5f0c", "id": LOW}),
        ("retries_to_divert", {"called": "5f0c", "id": LOW}),
        ("review_ids", {"called": "5f0c", "id": LOW}),
        ("fingerprints_beginning", {"low": "5f0c000000000000", "high": "5f0cffffffffffff", "limit": 11}),
    ],
)
def test_looking_for_an_id_reads_no_table_from_end_to_end(
    api: ApiInstallation, name: str, parameters: dict[str, Any]
) -> None:
    with psycopg.connect(api.installation.dsn) as connection:
        connection.execute(
            "insert into retry (id, message_id, queue, state, round, fingerprint)"
            " select gen_random_uuid(), 'm' || n, 'q', 'returned', 1, left(md5(n::text), 16)"
            " from generate_series(1, 5000) n"
        )
        connection.execute("analyze retry")
        rows = connection.execute(b"explain " + query(name), parameters).fetchall()
        connection.rollback()
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan on retry" not in plan, plan

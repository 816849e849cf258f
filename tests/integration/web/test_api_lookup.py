from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.api import LOOK, ApiInstallation

pytestmark = pytest.mark.one_series


def walk(api: ApiInstallation, **wanted: Any) -> list[list[dict[str, Any]]]:
    """All pages."""
    pages = []
    while True:
        page = api.get("/retries", params=wanted)
        pages.append(page["items"])
        if page["next"] is None:
            return pages
        wanted["cursor"] = page["next"]


def test_the_list_is_walked_page_by_page_and_each_is_there_once(api: ApiInstallation) -> None:
    made = {api.schedule("slow.paged", f"paged-{number}") for number in range(7)}
    for order in ("id", "due"):
        pages = walk(api, queue="slow.paged", limit=3, order=order)
        assert [len(page) for page in pages] == [3, 3, 1]
        assert {one["retry_id"] for page in pages for one in page} == made
    due = [one["due"] for page in walk(api, queue="slow.paged", limit=2, order="due") for one in page]
    assert due == sorted(due)
    ids = [one["retry_id"] for page in walk(api, queue="slow.paged", limit=2) for one in page]
    assert ids == sorted(ids)


def test_every_filter_narrows(api: ApiInstallation) -> None:
    one = api.schedule("slow.filters", "filters-1", error_type="Timeout", error_reason="after 30 s", owner="acme")
    other = api.schedule("slow.filters", "filters-2", error_type="Refused", error_reason="no")
    mark = api.get(f"/retries/{one}")["fingerprint"]
    soon, later = datetime.now(UTC) + timedelta(minutes=1), datetime.now(UTC) + timedelta(minutes=10)
    for wanted, expected in (
        ({"queue": "slow.filters"}, {one, other}),
        ({"message_id": "filters-1"}, {one}),
        ({"queue": "slow.filters", "fingerprint": mark}, {one}),
        ({"owner": "acme"}, {one}),
        ({"owner": "nobody"}, set()),
        ({"queue": "slow.filters", "state": ["held", "in_review"]}, set()),
        ({"queue": "slow.filters", "state": ["held", "scheduled"]}, {one, other}),
        ({"queue": "slow.filters", "due_after": soon.isoformat(), "due_before": later.isoformat()}, {one, other}),
        ({"queue": "slow.filters", "due_before": soon.isoformat()}, set()),
        ({"queue": "slow.filters", "due_after": later.isoformat()}, set()),
        ({"queue": "nobody"}, set()),
    ):
        for order in ("id", "due"):
            found = api.get("/retries", params={**wanted, "order": order})["items"]
            assert {item["retry_id"] for item in found} == expected, wanted


def test_no_payload_is_in_any_list_and_one_is_shown_only_to_operators(api: ApiInstallation) -> None:
    retry = api.schedule("slow.secret", "secret-1", b"the secret \xff word", error_reason="x" * 1000)
    listed = api.call("GET", "/retries", params={"queue": "slow.secret"})
    assert "secret word" not in listed.text
    assert len(listed.json()["items"][0]["error_reason"]) == 200
    assert "c2VjcmV0" not in listed.text + api.call("GET", f"/retries/{retry}").text
    refused = api.call("GET", f"/retries/{retry}/payload", token=LOOK)
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:tarry:problem:forbidden")
    shown = api.get(f"/retries/{retry}/payload")
    assert base64.b64decode(shown["body"]) == b"the secret \xff word"
    assert (shown["size"], shown["properties"]["message_id"]) == (17, "secret-1")
    assert shown["headers"]["tarry-id"] == retry


def test_one_retry_comes_with_its_timeline(api: ApiInstallation) -> None:
    retry = api.schedule("slow.timeline", "timeline-1")
    for called in (retry, retry.upper()):
        found = api.get(f"/retries/{called}", token=LOOK)
        assert (found["retry_id"], found["state"], found["queue"]) == (retry, "scheduled", "slow.timeline")
        assert [step["state"] for step in found["steps"]] == ["claimed", "scheduled"]
        assert found["steps"][1]["detail"]["tier"] == "retry.delay.5m"


def test_an_unknown_retry_is_not_found_and_says_where_to_look(api: ApiInstallation) -> None:
    for path in (f"/retries/{uuid4()}", f"/retries/{uuid4()}/payload"):
        answer = api.call("GET", path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert "tarry-id" in answer.json()["detail"]


def test_a_cursor_of_another_list_is_refused(api: ApiInstallation) -> None:
    api.schedule("slow.cursor", "cursor-1")
    api.schedule("slow.cursor", "cursor-2")
    cursor = api.get("/retries", params={"limit": 1, "queue": "slow.cursor"})["next"]
    for path, wanted in (
        ("/retries", {"cursor": cursor, "order": "due"}),
        ("/actions", {"cursor": cursor}),
        ("/retries", {"cursor": "rubbish"}),
        ("/retries", {"cursor": "bnVsbA"}),
        ("/retries", {"cursor": "é"}),
    ):
        answer = api.call("GET", path, params=wanted)
        assert answer.status_code == 422, wanted
        assert "pass `next` of the previous page" in answer.json()["detail"]


def test_the_status_shows_audit_broker_and_router(api: ApiInstallation) -> None:
    api.schedule("slow.status", "status-1")
    found = api.get("/status", token=LOOK)
    assert found["router"] == {"status": "ready", "reasons": []}
    assert found["audit"]["waiting"] >= 1
    assert found["troubles"] == []
    assert (found["paused"], found["attachments"]) == ([], [])
    assert {"retry.scheduled", "retry.audit", "manual-review.pending"} <= found["queues"].keys()


def test_the_topology_and_what_is_wrong_with_it(api: ApiInstallation) -> None:
    found = api.get("/topology")
    assert {"queue": "retry.delay.5m", "ttl_ms": 300_000} in found["tiers"]
    assert [policy["name"] for policy in found["policies"]] == ["quick", "slow", "default"]
    assert found["names"]["prefix"] == "retry."
    assert [one for one in api.get("/topology/findings")["findings"] if one["level"] == "wrong"] == []


def test_a_parameter_with_a_typing_error_does_not_list_everything(api: ApiInstallation) -> None:
    for wanted, detail in (
        ({"quue": "orders"}, "query: no such parameter; did you mean queue?"),
        ({"zzz": "1"}, "query: no such parameter; known parameters: state, queue, fingerprint"),
        ({"queue": ["a", "b"]}, "query.queue: should be given only once"),
        ({"due_before": "1700000000"}, "should be a time such as 2030-01-31T12:00:00Z"),
        ({"queue": "a\x00b"}, "query.queue: String should match"),
        ({"state": "lost"}, "query.state.0: Input should be 'claimed'"),
        ({"limit": "201"}, "query.limit: Input should be less than or equal to 200"),
    ):
        answer = api.call("GET", "/retries", params=wanted)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), wanted
        assert detail in answer.json()["detail"]

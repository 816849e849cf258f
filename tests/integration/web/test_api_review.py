"""The review over HTTP: what is api, and jobs that the service works on."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.integration.operations.review.reviewing import in_review, send_to_review
from tests.support.api import LOOK, ApiInstallation
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series


def wait_done(api: ApiInstallation, job: dict[str, Any]) -> dict[str, Any]:
    def done() -> dict[str, Any] | None:
        found: dict[str, Any] = api.get(f"/review/jobs/{job['id']}")
        return found if found["state"] == "done" else None

    found = wait_for(done, what="the service to work it off")
    assert found is not None
    return found


def test_groups_lists_and_one_without_payloads(api: ApiInstallation) -> None:
    installation = api.installation
    send_to_review(
        installation,
        installation.declare("looked"),
        ["r1", "r2", "r3"],
        body=b"secret",
        error_reason="no stock for 4711",
    )
    groups = api.get("/review/groups", params={"by": "queue", "queue": "looked"}, token=LOOK)
    assert [(one["key"], one["count"], one["error_reason"]) for one in groups] == [("looked", 3, "no stock for 4711")]
    first = api.get("/review/messages", params={"queue": "looked", "limit": 2}, token=LOOK)
    rest = api.get("/review/messages", params={"queue": "looked", "limit": 2, "cursor": first["next"]}, token=LOOK)
    assert {one["message_id"] for one in first["items"] + rest["items"]} == {"r1", "r2", "r3"}
    assert rest["next"] is None
    answer = api.call("GET", f"/review/messages/{first['items'][0]['retry_id']}", token=LOOK)
    assert answer.status_code == 200
    assert "secret" not in answer.text
    assert base64.b64encode(b"secret").decode() not in answer.text
    numbers = api.get("/review", token=LOOK)
    assert numbers["audit"] >= 3


def test_a_job_is_worked_off_by_the_service(api: ApiInstallation) -> None:
    installation = api.installation
    send_to_review(installation, installation.declare("redriven"), ["j1", "j2"])
    order = {
        "kind": "redrive",
        "which": {"queue": "redriven"},
        "set_headers": {"color": "red"},
        "requested_by": "alice",
    }
    answer = api.call("POST", "/review/jobs", json=order, headers={"Idempotency-Key": "redrive-1"})
    assert answer.status_code == 201, answer.text
    again = api.call("POST", "/review/jobs", json=order, headers={"Idempotency-Key": "redrive-1"})
    assert again.json()["id"] == answer.json()["id"]
    done = wait_done(api, answer.json())
    assert (done["done"], done["actor"], done["problems"]) == (2, "ops/alice", [])
    about, _ = installation.wait_message("redriven")
    assert (about.headers or {})["color"] == "red"
    stopped = api.call("POST", f"/review/jobs/{done['id']}/stop")
    assert stopped.status_code == 400
    kinds = [one["kind"] for one in api.get("/actions", params={"target": done["id"]})["items"]]
    assert kinds == ["review.stop", "review.redrive"]


def test_a_discard_over_http(api: ApiInstallation) -> None:
    installation = api.installation
    send_to_review(installation, installation.declare("discarded"), ["d1"])
    before = in_review(installation)
    answer = api.call("POST", "/review/jobs", json={"kind": "discard", "which": {"queue": "discarded"}})
    assert answer.status_code == 422
    order = {"kind": "discard", "which": {"queue": "discarded"}, "reason": "spam"}
    assert api.call("POST", "/review/jobs", json=order, token=LOOK).status_code == 403
    assert in_review(installation) == before
    job = api.call("POST", "/review/jobs", json=order).json()
    assert wait_done(api, job)["done"] == 1
    assert in_review(installation) == before - 1


def test_mistakes_are_told(api: ApiInstallation) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    assert api.call("GET", f"/review/messages/{nobody}").status_code == 404
    assert api.call("GET", f"/review/jobs/{nobody}").status_code == 404
    assert api.call("POST", f"/review/jobs/{nobody}/resume").status_code == 404
    assert api.call("GET", "/review/messages", params={"cursor": "abc"}).status_code == 422
    for which, more in (
        ({}, {}),
        ({"queue": "*"}, {"to": "retry.audit"}),
        ({"queue": "*"}, {"set_headers": {"tarry-id": "x"}}),
        ({"queue": "*"}, {"set_headers": {"a": "\x00"}}),
        ({"queue": "*"}, {"edit_body": "AAAA"}),
        ({"queue": "*"}, {"delay_ms": 10**11}),
    ):
        answer = api.call("POST", "/review/jobs", json={"kind": "redrive", "which": which, **more})
        assert answer.status_code == 422, answer.text
    answer = api.call("POST", "/review/jobs", json={"kind": "redrive", "which": {"queue": "no such queue"}})
    assert answer.status_code == 404

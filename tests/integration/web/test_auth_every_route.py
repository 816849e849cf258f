"""Every route, by introspection: without a token, with a wrong one, and with one that may only look."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import LOOK, OPERATE, ApiInstallation

pytestmark = pytest.mark.one_series

WRONG = {
    "none": {},
    "wrong": {"Authorization": "Bearer tarry_wrong"},
    "the hash": {"Authorization": "Bearer " + "0" * 64},
    "not bearer": {"Authorization": f"Basic {OPERATE}"},
    "in the address only": {},
}
LOOKING = {"Authorization": f"Bearer {LOOK}"}
FOR_OPERATORS = ("/payload", "/export", "/edits")
"""Ends of paths that show payloads."""


def routes(api: ApiInstallation) -> Iterator[tuple[str, str]]:
    """All that the service describes, and some that it does not."""
    known = api.schedule("slow.unauthorised", "unauthorised-1")
    for path, operations in api.get("/openapi.json")["paths"].items():
        if path.startswith("/api/"):
            filled = path.replace("{retry_id}", known)
            for name in ("queue", "pattern", "called"):
                filled = filled.replace(f"{{{name}}}", "slow.unauthorised")
            while "{" in filled:
                filled = filled[: filled.index("{")] + known + filled[filled.index("}") + 1 :]
            yield from ((method.upper(), filled) for method in operations)
    yield from (("GET", "/api/v1/openapi.json"), ("GET", "/api/v1/nothing"), ("DELETE", "/api/v1/retries"))
    yield from (("POST", "/api/v2/anything"), ("GET", "/api/"))


def call(api: ApiInstallation, method: str, path: str, headers: dict[str, str], **more: Any) -> httpx.Response:
    body = None if method == "GET" else {"reason": "because", "queue": "slow.unauthorised", "pattern": "*"}
    return api.client.request(method, path, headers=headers, json=body, **more)


def everything(api: ApiInstallation) -> str:
    """The current state of store and broker."""
    tables = [row[0] for row in api.rows("select tablename from pg_tables where schemaname = 'public' order by 1")]
    # A router reports every few seconds, and counts statistics in each audit pass.
    skipped = {"tarry_probe", "tarry_migration", "router", "statistic", "statistic_position", "statistic_error"}
    rows = {table: api.rows(f"select * from {table} order by 1") for table in tables if table not in skipped}  # noqa: S608
    bindings = sorted(json.dumps(one, sort_keys=True) for one in api.installation.api("bindings/{vhost}"))
    return json.dumps([rows, bindings], default=str)


def test_without_a_token_nothing_is_told_and_nothing_changes(api: ApiInstallation) -> None:
    found = list(routes(api))
    assert len(found) > 10
    before = everything(api)
    for method, path in found:
        for headers in WRONG.values():
            answer = call(api, method, path, headers, params={"access_token": OPERATE, "token": OPERATE})
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert set(answer.json()) == {"type", "title", "status", "code", "detail"}
    assert everything(api) == before
    told = api.router.logged("api caller refused")
    assert (told[-1]["address"], told[-1]["status"]) == ("127.0.0.1", 401)
    assert OPERATE not in api.router.log.read_text(encoding="utf-8")


def test_who_may_only_look_changes_nothing_and_sees_no_payload(api: ApiInstallation) -> None:
    found = list(routes(api))
    before = everything(api)
    for method, path in found:
        answer = call(api, method, path, LOOKING)
        if method != "GET" or path.endswith(FOR_OPERATORS):
            assert answer.status_code == 403, (method, path)
            assert "has the role look" in answer.json()["detail"]
        else:
            assert answer.status_code in {200, 404, 422}, (method, path, answer.text)
    assert everything(api) == before


def test_health_and_metrics_are_open_to_everybody(api: ApiInstallation) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert api.client.get(path).status_code == 200


def test_paths_that_are_not_there_are_problems_too(api: ApiInstallation) -> None:
    for method, path, status in (
        ("GET", "/nothing/", 404),
        ("GET", "/nothing", 404),
        ("POST", "/healthz", 405),
        ("GET", "/api/v1/nothing", 404),
        ("PUT", "/api/v1/retries", 405),
        ("HEAD", "/api/v1/retries", 405),
    ):
        answer = api.client.request(method, path, headers={"Authorization": f"Bearer {OPERATE}"})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path
    taken = api.client.request("DELETE", "/api/v1/review/jobs", headers={"Authorization": f"Bearer {OPERATE}"})
    assert taken.headers["allow"] == "GET, POST"
    assert api.client.get("/nothing").json()["detail"] == "There is nothing at /nothing."

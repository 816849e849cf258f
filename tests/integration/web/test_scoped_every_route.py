"""Every route of the description, with a token that is limited to some queues, and messages in other queues."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tarry.settings.tokens import Role, new_token
from tests.integration.operations.review.reviewing import send_to_review
from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

SCOPED, SCOPED_ENTRY = new_token("team", Role.OPERATE, ["slow.mine.*", "slow.our?"])
WATCHER, WATCHER_ENTRY = new_token("watcher", Role.LOOK, ["slow.mine.*"])
MINE, THEIRS = "slow.mine.a", "slow.theirs"
PAYLOAD, REASON, ERROR = b"their own payload", "their own reason", "THEIROWNERROR"
UNKNOWN = "00000000-1111-4222-8333-444444444444"


@dataclass
class World:
    """A service, with retries in a queue of the token and in another one."""

    api: ApiInstallation
    mine: dict[str, str] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.api.call(method, path, token=SCOPED, **more)

    def get(self, path: str, **params: Any) -> Any:
        return self.api.get(path, token=SCOPED, params=params)

    @property
    def secrets(self) -> list[str]:
        """What the token must never be shown."""
        names = [THEIRS, PAYLOAD.decode(), base64.b64encode(PAYLOAD).decode(), REASON, ERROR]
        return [*names, *self.theirs.values(), "their-waiting", "their-reviewed", "their-cancelled"]


@pytest.fixture(scope="module")
def world(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tokens = TOKENS | {"API_TOKENS": f"{TOKENS['API_TOKENS']}, {SCOPED_ENTRY}, {WATCHER_ENTRY}"}
    with api_installation(broker, services, tmp_path_factory.mktemp("scoped"), **tokens) as api:
        made = World(api)
        _fill(made, made.mine, MINE, "my")
        _fill(made, made.theirs, THEIRS, "their")
        api.call("POST", f"/queues/{THEIRS}/pause", json={"reason": REASON})
        api.call("POST", "/queues/slow.*/pause", json={"reason": REASON})
        made.theirs["fingerprint"] = api.get(f"/retries/{made.theirs['waiting']}")["fingerprint"]
        yield made


def _fill(world: World, ids: dict[str, str], queue: str, whose: str) -> None:
    api, installation = world.api, world.api.installation
    told: dict[str, Any] = {
        "error_type": ERROR if whose == "their" else "MyError",
        "error_reason": f"{whose} own error",
    }
    ids["waiting"] = api.schedule(queue, f"{whose}-waiting", PAYLOAD if whose == "their" else b"mine", **told)
    cancelled = api.schedule(queue, f"{whose}-cancelled", PAYLOAD, **told)
    reason = REASON if whose == "their" else "my reason"
    assert api.call("POST", f"/retries/{cancelled}/cancel", json={"reason": reason}).status_code == 200
    ids["cancelled"] = cancelled
    send_to_review(installation, queue, [f"{whose}-reviewed", f"{whose}-taken"], body=PAYLOAD, **told)
    installation.request(queue, "shared", **told)
    shared = wait_for(lambda: _of(api, "shared", queue), what="the shared message id")
    assert shared is not None
    ids["shared"] = shared
    ids["reviewed"] = _of(api, f"{whose}-reviewed", queue) or ""
    ids["taken"] = _of(api, f"{whose}-taken", queue) or ""
    order = {"kind": "redrive", "which": {"queue": queue, "ids": [ids["taken"]]}, "delay_ms": 300_000}
    ids["job"] = api.call("POST", "/review/jobs", json=order | {"reason": reason}).json()["id"]
    wait_for(lambda: api.get(f"/review/jobs/{ids['job']}")["state"] == "done", what="the job to be done")


def _of(api: ApiInstallation, message: str, queue: str) -> str | None:
    found = api.get("/retries", params={"message_id": message, "queue": queue})["items"]
    return str(found[0]["retry_id"]) if found else None


IDS = ("retry_id", "called")
QUERIES: dict[str, list[dict[str, Any]]] = {
    "/retries": [{"message_id": "shared"}, {"queue": THEIRS}, {"order": "due"}, {"limit": 200}],
    "/queues": [{"match": "*"}, {"match": "slow.*"}],
    "/actions": [{"limit": 200}, {"kind": "pause"}, {"kind": "review.redrive"}, {"target": "shared"}],
    "/review/groups": [{"by": by} for by in ("queue", "reason", "fingerprint", "age")],
    "/review/messages": [{"queue": "*"}, {"limit": 200}],
    "/review": [{"queue": "*"}],
    "/review/jobs": [{"limit": 200}, {"only_open": True}],
    "/adaptive": [{"queue": THEIRS}, {"limit": 200}],
    "/statistics": [
        *({"by": by, "over_time": over} for by in ("queue", "error", "owner") for over in (True, False)),
        {"by": ["queue", "error"], "format": "csv"},
        {"queue": THEIRS},
    ],
    "/explain/schedules": [{"queue": THEIRS}, {"policy": "slow"}],
}


def _bodies(path: str, world: World) -> list[dict[str, Any]]:
    some = {"properties": {"headers": {"original_queue": THEIRS}}, "payload": "x"}
    bodies: dict[str, list[dict[str, Any]]] = {
        "/explain": [{"messages": [some]}, {"messages": [{"payload": "x"}], "queue": THEIRS}],
        "/explain/first": [{"queue": THEIRS}, {"queue": "retry.scheduled"}, {"queue": "manual-review.pending"}],
        "/audit/write-off": [{"reason": "x", "execute": True, "patience": "0s"}],
        "/audit/recover": [{"execute": True, "review": True, "patience": "0s"}],
        "/queues/{name}/adaptive/retry": [{"error": world.theirs["fingerprint"], "always": True, "reason": "x"}],
        "/queues/{name}/adaptive/auto": [{"error": world.theirs["fingerprint"]}],
        "/review/check": [{"adopt": True, "close": True, "remove": True}],
        "/review/jobs": [
            {"kind": "discard", "which": {"queue": THEIRS}, "reason": "x"},
            {"kind": "discard", "which": {"ids": [world.theirs["reviewed"]]}, "reason": "x"},
            {"kind": "discard", "which": {"ids": ["their-reviewed"]}, "reason": "x"},
            {"kind": "redrive", "which": {"queue": MINE}, "to": THEIRS},
            {"kind": "redrive", "which": {}},
        ],
    }
    return bodies.get(path, [{}])


def _calls(world: World) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each route with ids and names of its own, of others, and with patterns that match both."""
    theirs = world.theirs
    retries = [*(theirs[name] for name in ("waiting", "reviewed", "cancelled")), theirs["waiting"][:8], "their-waiting"]
    values = {key: [*retries, "their-reviewed", "shared", world.mine["waiting"]] for key in IDS}
    values |= {
        "name": [THEIRS, "*", "slow.*", "slow.t*", "slow.?heirs"],
        "job_id": [theirs["job"], theirs["job"][:8]],
        "owner": ["acme"],
    }
    prefix = [{"fingerprint": theirs["fingerprint"][:5]}, {"fingerprint": theirs["fingerprint"]}]
    prefixes = dict.fromkeys(("/retries", "/review", "/review/groups", "/review/messages"), tuple(prefix))
    for path, operations in world.api.get("/openapi.json")["paths"].items():
        if not path.startswith("/api/v1"):
            continue
        short = path.removeprefix("/api/v1")
        name = next((one for one in (*IDS, "name", "job_id", "owner") if f"{{{one}}}" in short), None)
        filled = [short.replace(f"{{{name}}}", one) for one in values[name]] if name else [short]
        assert "{" not in "".join(filled), f"a new kind of parameter in {path}"
        for method in sorted(operations):
            more = (
                [{}, *({"params": one} for one in (*QUERIES.get(short, []), *prefixes.get(short, [])))]
                if method == "get"
                else [{"json": one} for one in _bodies(short, world)]
            )
            yield from ((method.upper(), one, given) for one in filled for given in more)


def test_lists_and_numbers_have_only_its_own_queues(world: World) -> None:
    assert {one["queue"] for one in world.get("/retries", limit=200)["items"]} == {MINE}
    assert {one["message_id"] for one in world.get("/review/messages")["items"]} == {"my-reviewed"}
    assert world.get("/review") == {"audit": 1, "queue": None, "fits": 1}
    assert [(one["key"], one["count"]) for one in world.get("/review/groups", by="queue")] == [(MINE, 1)]
    counts = world.get("/status")["audit"]
    assert (counts["in_review"], counts["waiting"]) == (1, 3)  # one waits, one is shared, one was redriven with a delay
    assert [one["name"] for one in world.get("/queues")["items"]] == [MINE]
    assert [one["id"] for one in world.get("/review/jobs")] == [world.mine["job"]]
    assert [one["message_id"] for one in world.get("/history/shared")] == ["shared"]
    assert {one["outcome"]["queue"] for one in world.get("/actions", kind="cancel")["items"]} == {MINE}
    pauses = world.get("/pauses")
    assert pauses["pauses"] == []
    [held] = pauses["paused_destinations"]
    assert (held["destination"], held["pauses"][0]["pattern"], held["pauses"][0]["reason"]) == (
        MINE,
        "(a wider pattern)",
        None,
    )


def test_nothing_of_another_queue_appears_in_any_answer(world: World) -> None:
    before = _their_state(world)
    calls = list(_calls(world))
    assert len(calls) > 100
    for method, path, more in calls:
        if world.mine["waiting"] in path and method == "POST":
            continue
        answer = world.call(method, path, **more)
        assert answer.status_code in {200, 201, 400, 403, 404, 409, 422}, (method, path, more, answer.text)
        asked = f"{path} {json.dumps(more)}"
        for secret in world.secrets:
            if secret not in asked or answer.is_success:
                assert secret not in answer.text, (method, path, more, answer.text)
    assert _their_state(world) == before


def _their_state(world: World) -> list[Any]:
    queue = f"'{THEIRS}'"
    return [
        world.api.rows(f"select id::text, state, round from retry where queue = {queue} order by 1"),  # noqa: S608
        world.api.rows("select id::text, wanted, finished_at from review_job order by 1"),
        world.api.rows("select pattern, actor, ended_at from pause order by id"),
        world.api.rows("select paused from intake"),
    ]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/retries/{}"),
        ("GET", "/retries/{}/payload"),
        ("GET", "/history/{}"),
        ("POST", "/retries/{}/cancel"),
        ("POST", "/retries/{}/retry"),
        ("GET", "/review/messages/{}"),
        ("GET", "/review/messages/{}/payload"),
    ],
)
def test_a_retry_of_another_queue_is_as_unknown_as_any(world: World, method: str, path: str) -> None:
    nobody = world.call(method, path.format(UNKNOWN))
    assert (nobody.status_code, nobody.json()["code"]) == (404, "not_found")
    for called in (world.theirs["waiting"], world.theirs["reviewed"], world.theirs["waiting"][:9], "their-reviewed"):
        answer = world.call(method, path.format(called))
        assert answer.text.replace(called, UNKNOWN) == nobody.text


@pytest.mark.parametrize("action", ["stop", "resume", "abandon", ""])
def test_a_job_of_others_is_as_unknown_as_any(world: World, action: str) -> None:
    method, tail = ("POST", f"/{action}") if action else ("GET", "")
    answers = [world.call(method, f"/review/jobs/{job}{tail}") for job in (UNKNOWN, world.theirs["job"])]
    assert [one.status_code for one in answers] == [404, 404]
    assert answers[0].text.replace(UNKNOWN, "") == answers[1].text.replace(world.theirs["job"], "")


def test_what_concerns_all_queues_is_refused_with_the_reason(world: World) -> None:
    for method, path, body in (
        ("GET", "/topology", None),
        ("GET", "/topology/findings", None),
        ("GET", "/audit/balance", None),
        ("GET", "/audit/verify", None),
        ("POST", "/audit/recover", {}),
        ("POST", "/intake/pause", {}),
        ("POST", "/review/check", {}),
        ("POST", "/queues/slow.*/pause", {}),
        ("POST", "/queues/*/resume", {}),
    ):
        answer = world.call(method, path, json=body) if body is not None else world.call(method, path)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (path, answer.text)
        assert "The token 'team' is limited to slow.mine.*, slow.our?" in answer.json()["detail"]


def test_a_bulk_action_takes_only_what_it_may_see(world: World) -> None:
    send_to_review(world.api.installation, MINE, ["bulk-1", "bulk-2"])
    order = {"kind": "discard", "which": {"queue": "*"}, "reason": "not wanted"}
    made = world.call("POST", "/review/jobs", json=order)
    assert made.status_code == 201, made.text
    assert made.json()["filter"]["scope"] == ["slow.mine.*", "slow.our?"]
    wait_for(lambda: world.get(f"/review/jobs/{made.json()['id'][:8]}")["state"] == "done", what="the job to be done")
    assert world.get(f"/review/jobs/{made.json()['id']}")["done"] == 3
    assert world.get("/review")["audit"] == 0
    assert world.api.get(f"/retries/{world.theirs['reviewed']}")["state"] == "in_review"


def _paused(world: World) -> list[str]:
    return [one["destination"] for one in world.get("/pauses")["paused_destinations"]]


def test_its_own_queues_can_be_operated(world: World) -> None:
    retry = world.api.schedule("slow.our1", "operated")
    assert world.call("GET", f"/retries/{retry[:8]}").json()["message_id"] == "operated"
    assert world.call("GET", "/retries/operated/payload").json()["size"] == len(b"payload")
    wait_for(lambda: "slow.our1" in _paused(world), what="the pause of slow.* to hold it")
    assert world.call("POST", "/queues/slow.our1/resume").status_code == 200
    paused = world.call("POST", "/queues/slow.mine.*/pause", json={"lasts": "1h"})
    assert (paused.status_code, paused.json()["pattern"]) == (200, "slow.mine.*")
    schedules = world.get("/explain/schedules", queue="slow.our1")
    assert [one["policy"] for one in schedules] == ["slow"]
    answer = world.call("POST", "/retries/operated/cancel")
    assert (answer.status_code, answer.json()["answer"]) == (200, "cancelled")


def test_a_limited_token_that_may_only_look_is_limited_in_both(world: World) -> None:
    assert world.api.call("GET", f"/retries/{world.mine['waiting']}", token=WATCHER).status_code == 200
    assert world.api.call("GET", f"/retries/{world.mine['waiting']}/payload", token=WATCHER).status_code == 403
    assert world.api.call("GET", f"/retries/{world.theirs['waiting']}", token=WATCHER).status_code == 404
    assert world.api.call("POST", f"/retries/{world.mine['waiting']}/cancel", token=WATCHER).status_code == 403

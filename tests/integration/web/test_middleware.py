"""The guard in front of a small application of its own, with real Postgres behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from tarry.errors import ConflictError
from tarry.operations.idempotency import IdempotencyKeys
from tarry.settings.tokens import Role, new_token
from tarry.store.database import PostgresPool
from tarry.web.api import problems
from tarry.web.api.auth import Access, Looker
from tarry.web.api.middleware import MOST_AT_ONCE, ApiRules, Middleware, Rates
from tests.support.spaces import Database

OPERATE, ENTRY = new_token("ops", Role.OPERATE)
OTHER, OTHER_ENTRY = new_token("others", Role.OPERATE)
PROBLEM = "application/problem+json"


class World:
    """An application whose one action can be held up and counted."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.looking = 0
        self.begun, self.full = asyncio.Event(), asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fails: Exception | None = None
        self.app = FastAPI()
        problems.install(self.app)
        self.app.post("/api/v1/act", status_code=201)(self._act)
        self.app.get("/api/v1/look")(self._look)
        self.app.get("/outside")(self._look_outside)
        self.client: httpx.AsyncClient
        self.guard: Middleware

    async def _act(self, caller: Looker, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.done.append(caller.actor())
        self.begun.set()
        await self.go_on.wait()
        if self.fails:
            raise self.fails
        return {"number": len(self.done), "body": body}

    async def _look(self) -> dict[str, bool]:
        self.looking += 1
        if self.looking == MOST_AT_ONCE:
            self.full.set()
        await self.go_on.wait()
        return {"looked": True}

    async def _look_outside(self) -> dict[str, bool]:
        return {"outside": True}

    async def act(self, key: str | None = None, token: str = OPERATE, **more: Any) -> httpx.Response:
        headers: dict[str, Any] = {"Authorization": f"Bearer {token}"} | ({"Idempotency-Key": key} if key else {})
        raw = {name.encode(): _bytes(value) for name, value in (headers | more.pop("headers", {})).items()}
        return await self.client.post("/api/v1/act", headers=raw, **more)

    async def answered(self, key: str) -> httpx.Response:
        """Once the first one with this key is over."""
        for _ in range(500):
            if (answer := await self.act(key, json={})).status_code != 409:
                return answer
            await asyncio.sleep(0.01)
        raise AssertionError(f"the call with the key {key} never ended")

    async def look(self, **headers: str) -> httpx.Response:
        return await self.client.get("/api/v1/look", headers={"Authorization": f"Bearer {OPERATE}"} | headers)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


@asynccontextmanager
async def world(dsn: str, **changed: Any) -> AsyncIterator[World]:
    pool = PostgresPool(dsn, "test")
    await pool.open()
    made = World()
    lease = changed.pop("lease", timedelta(seconds=60))
    rules: dict[str, Any] = {"rates": Rates(0), "body_limit": 2_000, "timeout": 20.0} | changed
    made.guard = Middleware(made.app, ApiRules(Access((ENTRY, OTHER_ENTRY)), IdempotencyKeys(pool, lease), **rules))
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made.guard), base_url="http://tarry") as made.client:
            yield made
    finally:
        await pool.close()


def running(dsn: str, story: Callable[[World], Awaitable[None]], **changed: Any) -> None:
    async def run() -> None:
        async with world(dsn, **changed) as made:
            await story(made)

    asyncio.run(run())


def test_the_same_key_and_request_are_done_once(database: Database) -> None:
    async def story(it: World) -> None:
        first = await it.act("k1", json={"a": 1})
        again = await it.act("k1", json={"a": 1})
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.json() == again.json() == {"number": 1, "body": {"a": 1}}
        assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
        assert again.headers["content-type"] == first.headers["content-type"]
        assert it.done == ["ops"]
        assert (await it.act(None, json={"a": 1})).json()["number"] == 2
        assert (await it.act(None, json={"a": 1})).json()["number"] == 3

    running(database.dsn, story)


def test_a_key_outlives_a_restart(database: Database) -> None:
    async def first(it: World) -> None:
        assert (await it.act("k1", json={})).json()["number"] == 1

    async def second(it: World) -> None:
        assert (await it.act("k1", json={})).headers["idempotency-replayed"] == "true"
        assert it.done == []

    running(database.dsn, first)
    running(database.dsn, second)


def test_a_key_belongs_to_its_request_and_to_its_caller(database: Database) -> None:
    async def story(it: World) -> None:
        assert (await it.act("k1", json={"a": 1})).status_code == 201
        for different in (
            {"json": {"a": 2}},
            {"json": {"a": 1}, "params": {"x": "1"}},
            {"json": {"a": 1}, "headers": {"X-Requested-By": "bob"}},
        ):
            refused = await it.act("k1", **different)
            assert (refused.status_code, refused.headers["content-type"]) == (422, PROBLEM)
            assert "was used for another call" in refused.json()["detail"]
        assert (await it.act("k1", OTHER, json={"a": 2})).json() == {"number": 2, "body": {"a": 2}}

    running(database.dsn, story)


def test_of_two_at_once_one_is_done_and_the_other_is_told_to_wait(database: Database) -> None:
    async def story(it: World) -> None:
        it.go_on.clear()
        first = asyncio.create_task(it.act("k1", json={}))
        await it.begun.wait()
        others = await asyncio.gather(*(it.act("k1", json={}) for _ in range(5)))
        assert {(other.status_code, other.headers["retry-after"]) for other in others} == {(409, "1")}
        it.go_on.set()
        assert (await first).json()["number"] == 1
        assert (await it.act("k1", json={})).headers["idempotency-replayed"] == "true"
        assert len(it.done) == 1

    running(database.dsn, story)


def test_twenty_at_the_same_moment_are_one(database: Database) -> None:
    async def story(it: World) -> None:
        answers = await asyncio.gather(*(it.act("k1", json={}) for _ in range(20)))
        assert {answer.status_code for answer in answers} <= {201, 409}
        assert len(it.done) == 1

    running(database.dsn, story)


@pytest.mark.parametrize(("error", "status"), [(ConflictError("being routed"), 409), (RuntimeError("geheim"), 500)])
def test_what_failed_is_tried_again_with_the_same_key(database: Database, error: Exception, status: int) -> None:
    async def story(it: World) -> None:
        it.fails = error
        failed = await it.act("k1", json={})
        assert (failed.status_code, failed.headers["content-type"]) == (status, PROBLEM)
        assert "geheim" not in failed.text
        it.fails = None
        assert (await it.act("k1", json={})).json()["number"] == 2

    running(database.dsn, story)


def test_a_call_that_was_cut_off_is_taken_over_after_its_lease(database: Database) -> None:
    async def story(it: World) -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            assert (await it.act("k1", json={})).json()["number"] == 1
            cut_off = "update api_call set finished_at = null, status = null, body = null"
            connection.execute(cut_off)
            assert (await it.act("k1", json={})).status_code == 409
            connection.execute("update api_call set started_at = started_at - interval '61 seconds'")
            assert (await it.act("k1", json={"other": True})).status_code == 422
            assert (await it.act("k1", json={})).json()["number"] == 2

    running(database.dsn, story)


def test_a_key_is_forgotten_after_a_day(database: Database) -> None:
    async def use(it: World) -> None:
        assert (await it.act("k1", json={})).json()["number"] == 1

    async def later(it: World) -> None:
        assert (await it.act("k2", json={})).json()["number"] == 1

    running(database.dsn, use)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("update api_call set started_at = started_at - interval '25 hours'")
        running(database.dsn, later)
        assert connection.execute("select key from api_call").fetchall() == [("k2",)]


def test_without_postgres_an_action_with_a_key_is_not_even_begun() -> None:
    async def story(it: World) -> None:
        refused = await it.act("k1", json={})
        assert (refused.status_code, refused.headers["content-type"]) == (503, PROBLEM)
        assert it.done == []

    running("postgresql://nobody@127.0.0.1:1/none", story)


def test_an_action_that_takes_too_long_goes_on_and_its_answer_is_kept(database: Database) -> None:
    async def story(it: World) -> None:
        it.go_on.clear()
        late = await it.act("k1", json={})
        assert (late.status_code, late.headers["content-type"]) == (504, PROBLEM)
        assert "same Idempotency-Key" in late.json()["detail"]
        it.go_on.set()
        again = await it.answered("k1")
        assert (again.status_code, again.json()["number"], len(it.done)) == (201, 1, 1)

    running(database.dsn, story, timeout=0.3)


def test_what_is_too_large_or_no_json_does_not_reach_the_application(database: Database) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1_000

    async def story(it: World) -> None:
        as_json = {"Content-Type": "application/json"}
        for content in (b"x" * 2_001, endless()):
            assert (await it.act(content=content, headers=as_json)).status_code == 413
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
            refused = await it.act(content=b"{}", headers={"Content-Type": kind})
            assert (refused.status_code, refused.headers["content-type"]) == (415, PROBLEM)
        assert (await it.act(content=b"{", headers=as_json)).status_code == 422
        assert it.done == []
        assert (
            await it.act(content=b"{}", headers={"Content-Type": "Application/JSON; charset=utf-8"})
        ).status_code == 201

    running(database.dsn, story)


def test_a_body_that_breaks_off_does_not_reach_the_application(database: Database) -> None:
    """`{"lasts": "30m"}` cut short must not become a pause for good."""
    parts = [{"type": "http.request", "body": b'{"lasts"', "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def story(it: World) -> None:
        headers = [(b"authorization", f"Bearer {OPERATE}".encode()), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/api/v1/act", "query_string": b"", "headers": headers}
        await it.guard(scope, receive, send)
        assert (sent[0]["status"], it.done) == (422, [])

    running(database.dsn, story)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Idempotency-Key", ""),
        ("Idempotency-Key", "a b"),
        ("Idempotency-Key", "x" * 201),
        ("X-Requested-By", ""),
        ("X-Requested-By", "x" * 101),
    ],
)
def test_headers_that_cannot_be_kept_are_refused(database: Database, header: str, value: str | bytes) -> None:
    async def story(it: World) -> None:
        refused = await it.act(json={}, headers={header: value})
        assert refused.status_code == 422
        assert header in refused.json()["detail"]
        assert it.done == []

    running(database.dsn, story)


def test_the_person_behind_a_token_is_recorded(database: Database) -> None:
    async def story(it: World) -> None:
        await it.act(json={}, headers={"X-Requested-By": "Zoë"})
        assert it.done == ["ops/Zoë"]

    running(database.dsn, story)


def test_too_many_requests_are_put_off_and_each_caller_has_a_share(database: Database) -> None:
    async def story(it: World) -> None:
        answers = [await it.look() for _ in range(12)]
        assert [answer.status_code for answer in answers[:4]] == [200] * 4
        refused = answers[-1]
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (await it.act(None, OTHER, json={})).status_code == 201
        guesses = [(await it.look(Authorization=f"Bearer guess-{number}")).status_code for number in range(12)]
        assert (guesses[0], guesses[-1]) == (401, 429)
        outside = await it.client.get("/outside")
        assert outside.status_code == 200, "health and metrics are not the API's business"

    running(database.dsn, story, rates=Rates(2))


def test_no_more_than_so_many_are_under_way_at_once(database: Database) -> None:
    async def story(it: World) -> None:
        it.go_on.clear()
        held = [asyncio.create_task(it.look()) for _ in range(MOST_AT_ONCE)]
        await it.full.wait()
        assert (await it.client.get("/outside")).status_code == 200
        refused = await it.look()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        it.go_on.set()
        assert {(await task).status_code for task in held} == {200}

    running(database.dsn, story)


def test_every_answer_says_that_it_must_not_be_kept_or_guessed_at(database: Database) -> None:
    async def story(it: World) -> None:
        for answer in (await it.look(), await it.look(Authorization=""), await it.act(content=b"x" * 3_000)):
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"

    running(database.dsn, story)

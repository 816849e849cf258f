"""The way to the API from the command line, against a server that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tarry.errors import (
    ApiError,
    AuditUnavailableError,
    ConflictError,
    NotFoundError,
    SettingsError,
    TarryError,
    WrongStateError,
)
from tarry.operations.api_client import ApiClient, segment

Answer = Callable[[int], tuple[int, bytes] | tuple[int, bytes, dict[str, str]] | None]
"""The number of the request → status, body and headers; None hangs up."""


@dataclass(frozen=True)
class Calls:
    """A client for each call."""

    url: str
    token: str | None
    person: str

    def get(self, path: str, parameters: dict[str, object] | None = None) -> Any:
        return self._call(lambda client: client.get(path, parameters))

    def post(self, path: str, body: dict[str, object] | None = None) -> Any:
        return self._call(lambda client: client.post(path, body))

    def _call(self, call: Callable[[ApiClient], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with ApiClient.open(self.url, self.token, self.person) as client:
                return await call(client)

        return asyncio.run(run())


@contextmanager
def server(answer: Answer) -> Iterator[tuple[Calls, list[dict[str, Any]]]]:
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            seen.append(
                {"path": self.path, "body": body, **{key.lower(): value for key, value in self.headers.items()}}
            )
            told = answer(len(seen))
            if told is None:
                return
            self.send_response(told[0])
            for name, value in (told[2] if len(told) > 2 else {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(told[1])

        do_POST = do_GET  # noqa: N815 - the base class calls it so

        def log_message(self, *_: object) -> None:
            """Quiet."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield Calls(f"http://127.0.0.1:{listening.server_port}/", "tarry_secret", "zoë@office"), seen
    finally:
        listening.shutdown()
        listening.server_close()


def ok(_number: int) -> tuple[int, bytes]:
    return 200, b'{"fine": true}'


def test_a_call_carries_token_person_and_key() -> None:
    with server(ok) as (remote, seen):
        assert remote.get("/retries", {"state": ["a", "b"], "queue": None, "limit": 5}) == {"fine": True}
        assert remote.post(f"/queues/{segment('a/b c')}/pause", {"reason": "x", "until": None}) == {"fine": True}
    looked, acted = seen
    assert looked["path"] == "/api/v1/retries?state=a&state=b&limit=5"
    assert (looked["authorization"], "idempotency-key" in looked) == ("Bearer tarry_secret", False)
    assert looked["x-requested-by"].encode("latin-1").decode() == "zoë@office"
    assert acted["path"] == "/api/v1/queues/a%2Fb%20c/pause"
    assert (json.loads(acted["body"]), acted["content-type"]) == ({"reason": "x"}, "application/json")
    assert len(acted["idempotency-key"]) == 32


def test_an_action_whose_answer_was_lost_is_repeated_with_the_same_key() -> None:
    with server(lambda number: None if number == 1 else ok(number)) as (remote, seen):
        assert remote.post("/x") == {"fine": True}
    assert len(seen) == 2
    assert seen[0]["idempotency-key"] == seen[1]["idempotency-key"]


@pytest.mark.parametrize(
    "later",
    [
        (429, b'{"detail": "too many"}', {"Retry-After": "0"}),
        (409, b'{"detail": "the same key is under way"}', {"Retry-After": "0"}),
        (503, b'{"detail": "busy"}', {"Retry-After": "0"}),
        (504, b'{"detail": "the action goes on"}'),
    ],
)
def test_a_service_that_says_later_is_asked_again_with_the_same_key(later: tuple[int, bytes]) -> None:
    with server(lambda number: later if number < 3 else ok(number)) as (remote, seen):
        assert remote.post("/x") == {"fine": True}
    assert len({one["idempotency-key"] for one in seen}) == 1
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("status", "error", "exit_code"),
    [
        (400, WrongStateError, 6),
        (401, ApiError, 1),
        (403, ApiError, 1),
        (404, NotFoundError, 4),
        (409, ConflictError, 5),
        (422, SettingsError, 2),
        (429, ApiError, 1),
        (500, ApiError, 1),
        (503, AuditUnavailableError, 1),
    ],
)
def test_a_refusal_is_the_error_of_the_same_command_without_the_api(
    status: int, error: type[TarryError], exit_code: int
) -> None:
    with (
        server(lambda _: (status, json.dumps({"detail": "being routed"}).encode())) as (remote, _),
        pytest.raises(error, match="being routed") as caught,
    ):
        remote.post("/x")
    assert caught.value.exit_code == exit_code
    assert "tarry_secret" not in str(caught.value)


def test_what_is_no_tarry_service_is_told() -> None:
    with server(lambda _: (200, b"<html>")) as (remote, _), pytest.raises(ApiError, match="is that a tarry service"):
        remote.get("/status")
    with pytest.raises(ApiError, match="HTTP_API=on"):
        Calls("http://127.0.0.1:9", None, "me").get("/status")


@pytest.mark.parametrize("url", ["localhost:8086", "ftp://host", "http://", "http://host:port", "//host"])
def test_what_is_no_address_is_a_mistake(url: str) -> None:
    with pytest.raises(SettingsError, match="write http://host:8086"):
        Calls(url, None, "me").get("/status")

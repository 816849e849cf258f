"""Inputs that nobody sends by accident."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tarry.amqp.properties import Properties
from tarry.core.names import Names
from tarry.events import stream
from tarry.events.cloudevent import Event
from tarry.events.webhooks import AT_ONCE, WHILE_FAILING, Deliverer, payload_of
from tarry.settings.tokens import Role, new_token
from tarry.web.api.events import _Answer
from tarry.web.dashboard.app import is_ours
from tarry.web.dashboard.rendering import LONGEST
from tarry.web.dashboard.retries import shown_body
from tarry.web.dashboard.sessions import Sessions

_, OPS = new_token("ops", Role.OPERATE)
SESSION = {"id": "a", "token": None, "person": None, "expires": 1}


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(SESSION | {"token": []}).encode(),
        json.dumps(SESSION | {"id": [], "expires": 9e15}).encode(),
        json.dumps(SESSION | {"expires": "x"}).encode(),
        json.dumps(SESSION | {"token": "ops", "expires": None}).encode(),
        b"[" * 40_000,
    ],
)
def test_a_forged_cookie_is_no_session_whatever_is_in_it(content: bytes) -> None:
    cookie = base64.urlsafe_b64encode(content).decode().rstrip("=") + ".x"
    assert Sessions([OPS]).read(cookie) is None


def test_a_path_that_looks_like_another_site_is_not_of_the_dashboard() -> None:
    assert is_ours("/")
    assert is_ours("/retries/1")
    assert not is_ours("//evil.example/x")


def test_a_deep_payload_is_shown_without_being_written_out() -> None:
    shown = shown_body(b"[" * 400 + b",".join([b"0"] * 300_000) + b"]" * 400)
    assert (shown.kind, len(shown.text)) == ("JSON", LONGEST)


def test_a_deep_body_is_no_event() -> None:
    assert Event.read(Properties(headers=b""), b"[" * 100_000) is None


def test_the_payload_of_an_event_without_a_valid_id_is_not_asked_for() -> None:
    unused: Any = None
    assert asyncio.run(payload_of(unused, SimpleNamespace(data={"retry_id": "1"}))) is None  # type: ignore[arg-type]


def test_an_endpoint_that_only_fails_is_tried_slowly() -> None:
    unused: Any = None
    webhook: Any = SimpleNamespace(name="billing", rate=None)
    deliverer = Deliverer(webhook, unused, unused, unused, Names(), unused, unused, lambda *_: None)
    rates = []
    for error in [*["answered 500"] * AT_ONCE, None]:
        deliverer._note(unused or SimpleNamespace(value="failed"), 0.0, error)  # type: ignore[arg-type]
        rates.append(deliverer._rate)
    assert rates == [*[None] * (AT_ONCE - 1), WHILE_FAILING, None]


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("after", [None, 0.0, 0.02])
def test_a_reader_that_leaves_at_any_moment_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch, steps: int, after: float | None
) -> None:
    class Link:
        closed = False

        async def close(self) -> None:
            await asyncio.sleep(0)
            self.closed = True

    class Reader:
        link = Link()

        async def batches(self) -> Any:
            await asyncio.Event().wait()
            yield []

    async def opened(*_: Any) -> Any:
        return reader

    async def leave() -> None:
        gone = asyncio.Event()
        if after is None:
            gone.set()
        else:
            asyncio.get_running_loop().call_later(after, gone.set)

        async def receive() -> Any:
            if not gone.is_set():
                await gone.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            for _turn in range(steps):
                await asyncio.sleep(0)

        found = await stream.read_events(None, Names(), stream.EventFilter(follow=True))  # type: ignore[arg-type]
        await _Answer(found)({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)

    reader = Reader()
    reader.link = Link()
    monkeypatch.setattr(stream, "_open", opened)
    asyncio.run(leave())
    assert reader.link.closed

"""Live numbers: the part of a page that changes, sent to the browser when it has changed (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from tarry.web.api.http_request import HttpReply

PATH = "/live"
FASTEST, SLOWEST = 1.0, 60.0
"""Seconds between two looks."""

SILENCE = 15.0
"""Seconds after which something is sent although nothing has changed: so that no proxy closes the connection, and the
page knows that the service is there."""

Part = Callable[[Scope], Awaitable[HttpReply]]
Headers = list[tuple[bytes, bytes]]


async def stream(scope: Scope, receive: Receive, send: Send, part: Part, headers: Headers) -> None:
    """Until the browser leaves, or its session ends: it connects again, or finds the login."""
    asked = Request(scope).query_params
    path, _, query = asked.get("page", "/").partition("?")
    wanted: Scope = {**scope, "path": path, "raw_path": None, "query_string": query.encode(), "state": {}}
    reply = await part({**wanted})
    if reply.status != 200 or reply.media_type != "application/json":  # noqa: PLR2004 - OK
        await reply.with_headers(*headers, (b"cache-control", b"no-store")).send(send)
        return
    about = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": [*about, *headers]})
    left = asyncio.create_task(_left(receive))
    try:
        await _follow(send, part, wanted, _seconds(asked.get("every", "5")), left)
    finally:
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left


async def _follow(send: Send, part: Part, wanted: Scope, every: float, left: asyncio.Task[None]) -> None:
    last, silent = b"", 0.0
    while not left.done():
        reply = await part({**wanted, "state": {}})
        if reply.status in {401, 403, 404}:
            break
        if reply.status == 200 and reply.body != last:  # noqa: PLR2004 - OK
            last, silent = reply.body, 0.0
            await _write(send, b"data: " + last + b"\n\n")
        elif silent >= SILENCE:
            silent = 0.0
            await _write(send, b"event: alive\ndata:\n\n")
        await asyncio.wait([left], timeout=every)
        silent += every
    await send({"type": "http.response.body", "body": b""})


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return


def _seconds(text: str) -> float:
    try:
        return min(SLOWEST, max(FASTEST, float(text)))
    except ValueError:
        return SLOWEST
